"""A compiled program with its modelled time."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax

from blockdraft_aot.compiled import Compiled, Counts, compile_and_read
from blockdraft_aot.errors import DoesNotFitError
from blockdraft_aot.programs import Program
from blockdraft_aot.roofline import Roofline
from blockdraft_aot.topology import Topology


@dataclass(frozen=True, slots=True)
class Modelled:
    """A program as the compiler sees it; nothing of it was run.

    Attributes:
        program: What was compiled.
        compiled: What XLA knows of it.
        counts: All it does on one chip, every layer and attention included.
        roofline: What the chip can do.
    """

    program: Program
    compiled: Compiled
    counts: Counts
    roofline: Roofline

    @property
    def collectives_per_layer(self) -> float:
        """Operations between chips that one layer needs."""
        return self.compiled.layer_collectives / self.program.traced_layers

    @property
    def seconds(self) -> float:
        """The time of XLA's own model, or the roofline of its counts where it has none."""
        return modelled_seconds(self.counts, self.program.attention, self.roofline)

    @property
    def bound(self) -> str:
        """What the chip's peaks would make of its operations and least bytes."""
        least = self.program.least_bytes
        memory = self.counts.bytes if least is None else least
        return "compute" if self.roofline.compute_bound(self.counts.flops, memory) else "memory"


def modelled_seconds(counts: Counts, attention: Counts, roofline: Roofline) -> float:
    """Return the modelled time of a program.

    XLA judges each operation by a model of the chip, kernels apart; the roofline of attention is
    added for those. Where it cannot judge some, it is the roofline of all that is counted, which
    overrates memory: results that stay on the chip are counted like the others.

    Args:
        counts: All the program does, attention included.
        attention: What attention does.
        roofline: What the chip can do.
    """
    # Each operation it cannot judge counts as -1 second.
    if counts.seconds > 0.0:
        return counts.seconds + roofline.seconds(attention.flops, attention.bytes)
    return roofline.seconds(counts.flops, counts.bytes)


def compile_program(program: Program, roofline: Roofline) -> Modelled:
    """Compile a program and add up what it does."""
    compiled = compile_and_read(program.lower())
    counts = compiled.counts if program.counted is None else layered_counts(program)
    return Modelled(program, compiled, counts.plus(program.attention), roofline)


def layered_counts(program: Program) -> Counts:
    """Return what a program with scanned layers does, attention by a kernel left out."""
    assert program.counted is not None
    rest, whole = (compile_and_read(lower()).counts for lower in program.counted)
    return rest.plus(whole.plus(rest, times=-1), times=program.layers)


def compile_all(
    programs: Sequence[Program],
    roofline: Roofline,
    on_program: Callable[[], None] = lambda: None,
) -> Iterator[Modelled]:
    """Compile programs, in order.

    Args:
        programs: To compile.
        roofline: What a chip can do.
        on_program: Called after each.
    """
    # XLA compiles outside the interpreter lock, so two at a time keep two cores busy.
    with ThreadPoolExecutor(max_workers=2) as executor:
        for modelled in executor.map(lambda each: compile_program(each, roofline), programs):
            on_program()
            yield modelled


def compile_on(
    programs: Sequence[Program], topology: Topology, on_program: Callable[[], None]
) -> tuple[Modelled, ...]:
    """Compile programs for the chips of a topology; see `compile_all`.

    Raises:
        DoesNotFitError: If the memory of a chip is too small for one of them.
    """
    try:
        return tuple(compile_all(programs, topology.roofline, on_program))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        # The compiler lists what it wanted to place, largest first.
        raise DoesNotFitError(f"a program does not fit {topology.name}: {error}") from error
