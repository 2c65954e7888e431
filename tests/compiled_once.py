"""Steps compiled once for all tests of a process that need the same program.

An engine or a draft method made anew in every test would otherwise trace, lower and compile the
same programs again: most of the suite's time. What a program is compiled from is its key, so a
test gets exactly the program that it would have compiled.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property, wraps
from typing import Any

import jax
import pytest

from blockdraft_drafter.compiled.programs import DraftPrograms
from blockdraft_verifier.device.target_step import TargetStep


class CompiledOnce:
    """A lowered program whose executable is shared by all who compile it."""

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._lowered = lowered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)

    @cached_property
    def _executable(self) -> jax.stages.Compiled:
        return self._lowered.compile()

    def compile(self) -> jax.stages.Compiled:
        return self._executable


@contextmanager
def shared_programs() -> Iterator[None]:
    """Lower and compile each program of the verifier and of the drafters only once."""
    with pytest.MonkeyPatch.context() as patched:
        for program in (TargetStep, DraftPrograms):
            patched.setattr(program, "lower", _remembering(program.lower))
        yield


@contextmanager
def own_programs() -> Iterator[None]:
    """Lower anew: for a test that replaces a part of the programs, and what it compiles."""
    with pytest.MonkeyPatch.context() as patched:
        for program in (TargetStep, DraftPrograms):
            lower: Any = program.lower
            patched.setattr(program, "lower", lower.__wrapped__)
        yield


def _remembering(lower: Callable[..., jax.stages.Lowered]) -> Callable[..., CompiledOnce]:
    known: dict[Hashable, CompiledOnce] = {}

    @wraps(lower)
    def remembered(program: Any, *arguments: Any) -> CompiledOnce:
        key = _key(([getattr(program, field.name) for field in fields(program)], arguments))
        if key not in known:
            known[key] = CompiledOnce(lower(program, *arguments))
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
