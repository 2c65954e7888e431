"""How fast training is, and how fast this machine could be."""

import time
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import DTypeLike

from blockdraft_models.decoder.products import project

_SIZE = 2048
# The best of many: on a busy machine most are slowed by others.
_REPEATS = 10


@dataclass(frozen=True, slots=True)
class Throughput:
    """Speed of a stretch of training.

    Attributes:
        positions_per_second: Drafted positions trained on.
        tokens_per_second: Context tokens read, padding included.
        flops_per_second: Floating-point operations of the compiled step.
        peak_share: Of what plain matrix products reach on the same devices.
    """

    positions_per_second: float
    tokens_per_second: float
    flops_per_second: float
    peak_share: float


def matmul_peak(dtype: DTypeLike) -> float:
    """Measure the floating-point operations per second of large matrix products, all devices."""
    x = jnp.ones((_SIZE, _SIZE), dtype)
    # The fastest form that there is for the type, which training uses too.
    multiply = jax.jit(partial(project, dtype=jnp.float32))
    jax.block_until_ready(multiply(x, x))
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(multiply(x, x))
        seconds.append(time.perf_counter() - start)
    # The CPU's simulated devices share its cores; real ones add up.
    devices = 1 if jax.default_backend() == "cpu" else jax.device_count()
    return 2 * _SIZE**3 / min(seconds) * devices
