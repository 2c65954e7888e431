"""What XLA says of a compiled program: memory, arithmetic, traffic, collectives, kernels."""

import math
import re
import time
from dataclasses import dataclass
from typing import Any

import jax

from blockdraft_aot.rounding import Rounding, rounding_of
from blockdraft_models.decoder.layer import LAYER_SCOPE

_COLLECTIVE = re.compile(
    r"^.* = .*? (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\(.*$",
    re.MULTILINE,
)
# How a Pallas kernel appears in a TPU's program.
_KERNEL = 'custom_call_target="tpu_custom_call"'


@dataclass(frozen=True, slots=True)
class Counts:
    """Amounts of one program on one device; those of alike programs add and scale.

    Attributes:
        flops: Floating point operations.
        bytes: Bytes accessed, intermediate results included.
        seconds: XLA's own estimate of the time.
    """

    flops: float
    bytes: float
    seconds: float

    def plus(self, other: "Counts", times: int = 1) -> "Counts":
        """Return these and `times` the others."""
        return Counts(
            self.flops + times * other.flops,
            self.bytes + times * other.bytes,
            self.seconds + times * other.seconds,
        )


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program and what is known of it, on one device.

    Attributes:
        compile_seconds: Time it took to compile.
        counts: What it does; the body of a loop is counted once.
        argument_bytes: Weights, caches and inputs.
        temporary_bytes: Memory while it runs, beside arguments and results.
        result_bytes: Results that do not take the place of an argument.
        code_bytes: The program itself.
        collectives: Operations between devices.
        layer_collectives: Those of them that are part of decoder layers.
        kernels: Pallas kernels in it.
        rounding: How it adds, as far as its text shows.
    """

    compile_seconds: float
    counts: Counts
    argument_bytes: int
    temporary_bytes: int
    result_bytes: int
    code_bytes: int
    collectives: int
    layer_collectives: int
    kernels: int
    rounding: Rounding


def compile_and_read(lowered: jax.stages.Lowered) -> Compiled:
    """Compile a program and read what XLA knows of it.

    Raises:
        jax.errors.JaxRuntimeError: If it cannot be compiled, or not for this memory.
    """
    started = time.perf_counter()
    executable: Any = lowered.compile()
    seconds = time.perf_counter() - started
    text: str = executable.as_text()
    collectives = _COLLECTIVE.findall(text)
    cost, memory = executable.cost_analysis(), executable.memory_analysis()
    return Compiled(
        compile_seconds=seconds,
        counts=Counts(
            cost["flops"],
            cost["bytes accessed"],
            cost.get("optimal_seconds", 0.0),
        ),
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        result_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        collectives=len(collectives),
        layer_collectives=sum(LAYER_SCOPE in line for line in collectives),
        kernels=text.count(_KERNEL),
        rounding=rounding_of(text),
    )


def bytes_on_one_device(described: Any) -> int:
    """Return how much of some described arrays, a pytree, each device holds."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(described)
    )
