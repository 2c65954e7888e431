"""K-flat curves of TPUs that are not there, from compiled programs."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
from jax.typing import DTypeLike

from blockdraft_aot.compiled import modelled_seconds
from blockdraft_aot.model_shapes import Pair
from blockdraft_aot.programs import TargetPrograms
from blockdraft_aot.settings import ServingLimits
from blockdraft_aot.topology import Topology
from blockdraft_bench.kflat.cost import StepCost, StepShape
from blockdraft_bench.kflat.curve import Curve, Timing, curves_of
from blockdraft_bench.run import Run
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_verifier.device.buckets import Bucket

# As `blockdraft compile` has it by default.
PAGE_SIZE = 32


def modelled_curves(
    configs: Sequence[DecoderConfig],
    topologies: Sequence[Topology],
    shapes: Sequence[StepShape],
    dtype_name: str,
    run: Run,
) -> list[Curve]:
    """Return the curves of chips that are not there; "auto" is what it means on a TPU."""
    dtype = jnp.dtype("float32" if dtype_name == "float32" else "bfloat16")
    curves = []
    for topology in topologies:
        chips = topology.mesh.size
        for config in configs:
            phase = run.phase(f"modelling {config.name} on {topology.name}", len(shapes))
            curves += curves_of(
                config,
                modelled_timings(config, shapes, dtype, topology, on_step=phase.advance),
                device=f"{chips} x {topology.kind} ({topology.name})",
                modelled=True,
                bytes_per_weight=dtype.itemsize,
                roofline=topology.roofline.of_chips(chips),
            )
    return curves


def modelled_timings(
    config: DecoderConfig,
    shapes: Sequence[StepShape],
    dtype: DTypeLike,
    topology: Topology,
    *,
    on_step: Callable[[], None] = lambda: None,
) -> dict[StepShape, Timing]:
    """Return the modelled time of each step, on all chips of a topology; nothing is measured.

    The time is that of the compiler's own model, or the roofline of its counts where it has none,
    attention added by hand. What every chip does for itself is counted on each.
    """

    def timing(shape: StepShape) -> Timing:
        context = shape.context_tokens + shape.tokens_per_sequence
        limits = ServingLimits(shape.batch, shape.tokens, context, PAGE_SIZE)
        pages = shape.batch * -(-context // PAGE_SIZE)
        programs = TargetPrograms.on(topology.mesh, Pair(config, None), limits, pages, dtype)
        # Logits are wanted of every token.
        bucket = Bucket(shape.batch, shape.tokens, shape.tokens)
        attention = programs.program(bucket, shape.context_tokens).attention
        counts = programs.count_greedy(bucket).plus(attention)
        seconds = modelled_seconds(counts, attention, topology.roofline)
        chips = topology.mesh.size
        compiled = StepCost(chips * counts.flops, chips * counts.bytes)
        return Timing(seconds, compiled=compiled)

    timings = {}
    # XLA compiles outside the interpreter lock, so two at a time keep two cores busy.
    with ThreadPoolExecutor(max_workers=2) as executor:
        for shape, modelled in zip(shapes, executor.map(timing, shapes), strict=True):
            timings[shape] = modelled
            on_step()
    return timings
