"""A program compiled, never run: memory, arithmetic, traffic, collectives, its modelled time."""

import math
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from blockdraft_aot.roofline import Roofline
from blockdraft_aot.settings import DoesNotFitError
from blockdraft_aot.topology import Topology
from blockdraft_models.decoder.layer import LAYER_SCOPE

_COLLECTIVE = re.compile(
    r"^.* = .*? (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\(.*$",
    re.MULTILINE,
)
# Products and sums of floats, whose order XLA chooses by their shapes. It also drops axes of one
# element by sums, which add nothing.
_SUM = re.compile(
    r"^.* = \(?(?:f32|bf16)\[.*? (?:dot|convolution|reduce|reduce-window)\("
    r"(?!.*reduce_sub_computation).*$",
    re.MULTILINE,
)
# How a Pallas kernel appears in a TPU's program.
_KERNEL = 'custom_call_target="tpu_custom_call"'


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one program on one device; they can be added and scaled."""

    flops: float = 0.0  # floating point operations
    bytes: float = 0.0  # bytes accessed, intermediate results included
    seconds: float = 0.0  # XLA's own estimate of the time

    def plus(self, counts: "Counts", times: int = 1) -> "Counts":
        """Return the sum of these counts and `times` those of `counts`."""
        return Counts(
            self.flops + times * counts.flops,
            self.bytes + times * counts.bytes,
            self.seconds + times * counts.seconds,
        )


@dataclass(frozen=True, slots=True)
class Compiled:
    """Figures of a compiled program, on one device."""

    compile_seconds: float  # time it took to compile
    counts: Counts  # what it does; the body of a loop is counted once, the inside of a kernel never
    argument_bytes: int  # weights, caches and inputs
    temporary_bytes: int  # memory while it runs, beside arguments and results
    result_bytes: int  # results that do not take the place of an argument
    code_bytes: int  # the program itself
    collectives: int  # operations between devices
    layer_collectives: int  # how many of them are part of decoder layers
    kernels: int  # Pallas kernels in it
    layer_sums: int  # products and sums in decoder layers that are part of no kernel


def compile_and_read(lowered: jax.stages.Lowered) -> Compiled:
    """Compile a program and read XLA's figures of it; JAX's error if memory is too small."""
    started = time.perf_counter()
    executable: Any = lowered.compile()
    seconds = time.perf_counter() - started
    text: str = executable.as_text()
    collectives = _COLLECTIVE.findall(text)
    cost, memory = executable.cost_analysis(), executable.memory_analysis()
    return Compiled(
        compile_seconds=seconds,
        counts=Counts(cost["flops"], cost["bytes accessed"], cost.get("optimal_seconds", 0.0)),
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        result_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        collectives=len(collectives),
        layer_collectives=sum(LAYER_SCOPE in line for line in collectives),
        kernels=text.count(_KERNEL),
        layer_sums=sum(LAYER_SCOPE in line for line in _SUM.findall(text)),
    )


def bytes_on_one_device(described: Any) -> int:
    """Return the bytes that each device holds of a pytree of described arrays."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(described)
    )


@dataclass(frozen=True, slots=True)
class Program:
    """One program to compile."""

    kind: str  # "verify", "prefill", "append" or "draft"
    rows: int  # sequences; 0 where rows of features go to any of them
    tokens: int  # tokens, or rows of features
    lower: Callable[[], jax.stages.Lowered]  # traces it
    # Layers that the program spells out: one if they are scanned, and each as often as it is passed
    # through.
    traced_layers: int
    by_hand: Counts = Counts()  # what XLA cannot count, over all layers: attention, experts
    # Counts the rest of it; None where XLA's counts of the program will do.
    count: Callable[[], Counts] | None = None
    # Bytes it has to read, by hand: weights once, and KV caches; None if unknown.
    least_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Modelled:
    """A program as the compiler sees it."""

    program: Program  # what was compiled
    compiled: Compiled  # what XLA knows of it
    counts: Counts  # all it does on one chip, every layer and what is counted by hand included
    roofline: Roofline  # what the chip can do

    @property
    def collectives_per_layer(self) -> float:
        """Operations between chips that one layer needs."""
        return self.compiled.layer_collectives / self.program.traced_layers

    @property
    def seconds(self) -> float:
        """See `modelled_seconds`."""
        return modelled_seconds(self.counts, self.program.by_hand, self.roofline)

    @property
    def bound(self) -> str:
        """Resource that sets its least time at the chip's peaks: "compute" or "memory"."""
        least = self.program.least_bytes
        memory = self.counts.bytes if least is None else least
        return "compute" if self.roofline.compute_bound(self.counts.flops, memory) else "memory"


def modelled_seconds(counts: Counts, by_hand: Counts, roofline: Roofline) -> float:
    """Return the modelled time of a program that does `counts`, `by_hand` included.

    XLA estimates each operation with a model of the chip; the roofline of the counts by hand is
    added. Where XLA cannot estimate some, the result is the roofline of all counts. That overrates
    memory: results that stay on the chip are counted like the others.
    """
    # Each operation that XLA cannot estimate counts as -1 second.
    if counts.seconds > 0.0:
        return counts.seconds + roofline.seconds(by_hand.flops, by_hand.bytes)
    return roofline.seconds(counts.flops, counts.bytes)


def compile_on(
    programs: Sequence[Program], topology: Topology, on_program: Callable[[], None]
) -> tuple[Modelled, ...]:
    """Compile programs for the chips of a topology; `on_program` is called after each.

    DoesNotFitError says that the memory of a chip is too small for one of them.
    """

    def compile_one(program: Program) -> Modelled:
        compiled = compile_and_read(program.lower())
        counts = compiled.counts if program.count is None else program.count()
        on_program()
        return Modelled(program, compiled, counts.plus(program.by_hand), topology.roofline)

    try:
        # XLA compiles outside the interpreter lock, so two at a time keep two cores busy.
        with ThreadPoolExecutor(max_workers=2) as executor:
            return tuple(executor.map(compile_one, programs))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        # The compiler lists what it wanted to place, largest first.
        raise DoesNotFitError(f"a program does not fit {topology.name}: {error}") from error
