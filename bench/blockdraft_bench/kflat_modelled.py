"""K-flat curves of TPUs that are not there, from the compiler's cost analysis."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from blockdraft_bench.compiled_cost import compiled_cost
from blockdraft_bench.kflat import Point, StepShape, counted_point
from blockdraft_bench.roofline import Roofline
from blockdraft_models.config import DecoderConfig


def modelled_points(
    config: DecoderConfig,
    shapes: Sequence[StepShape],
    dtype: DTypeLike,
    device: jax.Device,
    roofline: Roofline,
    *,
    on_step: Callable[[], None] = lambda: None,
) -> dict[StepShape, Point]:
    """Return a modelled point for each shape; nothing is measured.

    The time is the compiler's own estimate, or where it has none the roofline of the operations
    and bytes it counts.

    Args:
        config: The decoder.
        shapes: Of the steps.
        dtype: Element type of weights and cache.
        device: Of a topology.
        roofline: What the device can do.
        on_step: Called after every shape.
    """
    size = jnp.dtype(dtype).itemsize

    def point(shape: StepShape) -> Point:
        compiled = compiled_cost(config, shape, dtype, device)
        seconds = compiled.seconds
        if seconds is None:
            seconds = roofline.seconds(compiled.flops, compiled.bytes)
        return counted_point(config, shape, size, seconds, None, compiled.flops, compiled.bytes)

    points = {}
    # XLA compiles outside the interpreter lock, so two at a time keep two cores busy.
    with ThreadPoolExecutor(max_workers=2) as executor:
        for shape, modelled in zip(shapes, executor.map(point, shapes), strict=True):
            points[shape] = modelled
            on_step()
    return points
