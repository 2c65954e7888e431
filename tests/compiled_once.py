"""Steps compiled once for all tests of a process that need the same program.

An engine or a draft method made anew in every test would otherwise trace, lower and compile the
same programs again: most of the suite's time. What a program is compiled from is its key, so a
test gets exactly the program that it would have compiled.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from typing import Any

import jax
import pytest
from jax.stages import Compiled, Lowered

from blockdraft_drafter.compiled.programs import DraftPrograms
from blockdraft_verifier.device.target_step import TargetStep


@contextmanager
def shared_programs() -> Iterator[None]:
    """Lower and compile each program of the verifier and of the drafters only once."""
    shared: dict[int, Compiled | None] = {}
    compile_anew = Lowered.compile

    def compile_once(lowered: Lowered, *arguments: Any, **options: Any) -> Compiled:
        if arguments or options or id(lowered) not in shared:
            return compile_anew(lowered, *arguments, **options)
        executable = shared[id(lowered)]
        if executable is None:
            executable = shared[id(lowered)] = compile_anew(lowered)
        return executable

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lowered, "compile", compile_once)
        for program in (TargetStep, DraftPrograms):
            patched.setattr(program, "lower", _remembering(program.lower, shared))
        yield


@contextmanager
def own_programs() -> Iterator[None]:
    """Lower anew: for a test that replaces a part of the programs, and what it compiles."""
    with pytest.MonkeyPatch.context() as patched:
        for program in (TargetStep, DraftPrograms):
            lower: Any = program.lower
            patched.setattr(program, "lower", lower.__wrapped__)
        yield


def _remembering(
    lower: Callable[..., Lowered], shared: dict[int, Compiled | None]
) -> Callable[..., Lowered]:
    known: dict[Hashable, Lowered] = {}

    @wraps(lower)
    def remembered(program: Any, *arguments: Any) -> Lowered:
        said = [getattr(program, field.name) for field in fields(program)]
        # A subclass computes something else from the same fields.
        key = type(program), _key((said, arguments))
        if key not in known:
            # Kept for ever, so no other program gets its identity.
            known[key] = lower(program, *arguments)
            shared[id(known[key])] = None
        return known[key]

    return remembered


def _key(tree: Any) -> Hashable:
    """Return what distinguishes programs: structure, and shape, type and place of arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(
        (leaf.shape, leaf.dtype, leaf.sharding)
        if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)
        else leaf
        for leaf in leaves
    )
