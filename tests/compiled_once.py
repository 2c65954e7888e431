"""Steps compiled once for all tests of a process that need the same program.

An engine or a draft method made anew in every test would otherwise trace, lower and compile the
same programs again: most of the suite's time. What a program is compiled from is its key, so a
test gets exactly the program that it would have compiled.

The code of a program lies in several memory mappings, of which Linux allows a process 65,530. One
that has used them up dies wherever XLA asks for memory next, so all is forgotten in time.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.stages import Compiled, Lowered

from blockdraft_drafter.compiled.programs import DraftPrograms
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.step import TargetStep

MAX_MAPPINGS = 25_000
"""After how many mappings a process forgets its programs: a file of tests adds up to 15,000."""


@dataclass(slots=True)
class SharedPrograms:
    """The programs of this process."""

    lowered: dict[Hashable, Lowered] = field(default_factory=dict)  # by what they are made from
    # By the identity of the lowered one; None until somebody asks.
    compiled: dict[int, Compiled | None] = field(default_factory=dict)

    def compile(self, lowered: Lowered, compile_anew: Callable[..., Compiled]) -> Compiled:
        """Return what a lowered program compiles to."""
        executable = self.compiled.get(id(lowered))
        if executable is None:
            executable = compile_anew(lowered)
            if id(lowered) in self.compiled:
                self.compiled[id(lowered)] = executable
        return executable

    def keep(self, key: Hashable, lowered: Lowered) -> None:
        """Remember a lowered program; while it is kept, no other one gets its identity."""
        self.lowered[key] = lowered
        self.compiled[id(lowered)] = None

    def forget_if_many(self) -> None:
        """Drop all programs, those of JAX's own caches too, if there is little room for more."""
        maps = Path("/proc/self/maps")
        if maps.exists() and maps.read_bytes().count(b"\n") > MAX_MAPPINGS:
            self.lowered.clear()
            self.compiled.clear()
            jax.clear_caches()


@contextmanager
def shared_programs() -> Iterator[SharedPrograms]:
    """Lower and compile each program of the verifier and of the drafters only once."""
    shared = SharedPrograms()
    compile_anew = Lowered.compile

    def compile_once(lowered: Lowered, *arguments: Any, **options: Any) -> Compiled:
        if arguments or options:
            return compile_anew(lowered, *arguments, **options)
        return shared.compile(lowered, compile_anew)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lowered, "compile", compile_once)
        for program in (TargetStep, DraftPrograms):
            patched.setattr(program, "lower", _remembering(program.lower, shared))
        yield shared


@contextmanager
def jax_keeps_nothing() -> Iterator[None]:
    """Let JAX keep no executables, nor find any."""
    names = ("jax_enable_compilation_cache", "jax_compilation_cache_dir")
    before = {name: jax.config.values[name] for name in names}
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_compilation_cache_dir", None)
    # Whether the cache is used is asked once, at the first compilation.
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@contextmanager
def own_programs() -> Iterator[None]:
    """Lower anew: for a test that replaces a part of the programs, and what it compiles."""
    with pytest.MonkeyPatch.context() as patched:
        for program in (TargetStep, DraftPrograms):
            lower: Any = program.lower
            patched.setattr(program, "lower", lower.__wrapped__)
        yield


def _remembering(lower: Callable[..., Lowered], shared: SharedPrograms) -> Callable[..., Lowered]:
    @wraps(lower)
    def remembered(program: Any, *arguments: Any) -> Lowered:
        said = [_said(getattr(program, field.name)) for field in fields(program)]
        # A subclass computes something else from the same fields.
        key = type(program), _key((said, arguments))
        if key not in shared.lowered:
            shared.keep(key, lower(program, *arguments))
        return shared.lowered[key]

    return remembered


def _said(value: Any) -> Any:
    """Return what a program is made from: of a projection its shape, its elements are arguments."""
    return (value.layer_ids, value.projection) if isinstance(value, FeatureForm) else value


def _key(tree: Any) -> Hashable:
    """Return what distinguishes programs: structure, and shape, type and place of arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(
        (leaf.shape, leaf.dtype, leaf.sharding)
        if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)
        else leaf
        for leaf in leaves
    )
