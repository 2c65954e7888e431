"""K-flat curves of TPUs that are not there, from compiled programs."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
from jax.typing import DTypeLike

from blockdraft_aot.modelled import layered_counts, modelled_seconds
from blockdraft_aot.pair import Pair
from blockdraft_aot.programs import step_program
from blockdraft_aot.settings import ServingLimits
from blockdraft_aot.target_programs import TargetPrograms
from blockdraft_aot.topology import Topology
from blockdraft_bench.kflat.curve import Point, StepShape, counted_point
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_verifier.device.buckets import Bucket

# As `blockdraft compile` has it by default.
PAGE_SIZE = 32


def modelled_points(
    config: DecoderConfig,
    shapes: Sequence[StepShape],
    dtype: DTypeLike,
    topology: Topology,
    *,
    on_step: Callable[[], None] = lambda: None,
) -> dict[StepShape, Point]:
    """Return a modelled point for each shape, on all chips of a topology; nothing is measured.

    The time is that of the compiler's own model, or the roofline of its counts where it has none,
    attention added by hand. What every chip does for itself is counted on each.

    Args:
        config: The decoder.
        shapes: Of the steps.
        dtype: Element type of weights and cache.
        topology: The chips.
        on_step: Called after every shape.
    """
    size = jnp.dtype(dtype).itemsize

    def point(shape: StepShape) -> Point:
        context = shape.context_tokens + shape.tokens_per_sequence
        limits = ServingLimits(shape.batch, shape.tokens, context, PAGE_SIZE)
        pages = shape.batch * -(-context // PAGE_SIZE)
        programs = TargetPrograms.on(topology.mesh, Pair(config, None), limits, pages, dtype)
        # Logits are wanted of every token.
        bucket = Bucket(shape.batch, shape.tokens, shape.tokens)
        program = step_program(programs, bucket, shape.context_tokens)
        counts = layered_counts(program).plus(program.attention)
        seconds = modelled_seconds(counts, program.attention, topology.roofline)
        chips = topology.mesh.size
        return counted_point(
            config, shape, size, seconds, None, chips * counts.flops, chips * counts.bytes
        )

    points = {}
    # XLA compiles outside the interpreter lock, so two at a time keep two cores busy.
    with ThreadPoolExecutor(max_workers=2) as executor:
        for shape, modelled in zip(shapes, executor.map(point, shapes), strict=True):
            points[shape] = modelled
            on_step()
    return points
