"""Which element type a model computes in, and which one a target is served in.

On CPU the faster one is taken, which no fact about a processor tells: a trial of decoder layers is
timed once, and kept for the processes that start beside this one, and after it (docs/adr/0020).
"""

import functools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import jaxlib.version
from jaxtyping import Array, DTypeLike

from blockdraft_models.cache import default_cache_dir, kept_measurement
from blockdraft_models.decoder.products import project
from blockdraft_models.processor import this_processor

logger = logging.getLogger(__name__)

SPEEDUP_FILE = "bfloat16-speedup.json"
_CPU_DTYPES = ("float32", "bfloat16")
# At a tie bfloat16 is the better choice: its steps are batch-invariant (docs/adr/0018), and trials
# on a busy machine scatter by more than this.
_LEAST_SPEEDUP = 0.95

# Rows of the trial: those of a block that is verified, or drafted.
_ROWS = 8
# The default target's layers, so many that their 106 MB of float32 exceed most caches.
_LAYERS, _HIDDEN, _INTERMEDIATE = 10, 576, 1536
_ROUNDS = 25

Trial = Callable[[], float]
"""Runs once, and returns the seconds it took."""


def compute_dtype(name: str) -> jnp.dtype:
    """Return what "float32" or "bfloat16" means, or "auto": bfloat16 on TPU, where it is native.

    What is kept and continued on other machines is computed in this; what serves has a choice of
    its own on CPU, `serving_dtype`.
    """
    if name == "auto":
        name = "bfloat16" if jax.default_backend() == "tpu" else "float32"
    return jnp.dtype(name)


def cache_dtype(compute: DTypeLike) -> jnp.dtype:
    """Return the element type of keys and values of a model that computes in another.

    XLA's CPU backend writes no rows of bfloat16: it would widen and narrow the whole cache at every
    step, which takes longer than all the rest (docs/adr/0014).
    """
    return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else compute)


def serving_dtype(name: str) -> jnp.dtype:
    """Return the element type in which this process is to serve a target, or to draft for one.

    As `compute_dtype`, but "auto" is on CPU what the environment variable BLOCKDRAFT_CPU_DTYPE
    says, or else the faster one on this machine, measured the first time, which takes seconds.
    Completions do not depend on drafting in either, but they differ between them.

    Raises:
        ValueError: If the variable is neither.
    """
    if name == "auto" and jax.default_backend() == "cpu":
        name = _pinned() or _faster_dtype(cpu_bfloat16_speedup())
    return compute_dtype(name)


def cpu_bfloat16_speedup() -> float:
    """Return how many times as fast bfloat16 is as float32 on this CPU, measured the first time."""
    return _kept_speedup(default_cache_dir())


def _faster_dtype(speedup: float) -> str:
    return "bfloat16" if speedup >= _LEAST_SPEEDUP else "float32"


def _pinned() -> str | None:
    name = os.environ.get("BLOCKDRAFT_CPU_DTYPE")
    if name and name not in _CPU_DTYPES:
        raise ValueError(f"BLOCKDRAFT_CPU_DTYPE must be {' or '.join(_CPU_DTYPES)}, got {name}")
    return name or None


# Kept in the process too: what asks twice gets the same also where no file can be written.
@functools.cache
def _kept_speedup(folder: Path) -> float:
    key = f"{this_processor()}, jaxlib {jaxlib.version.__version__}, products in tiles"
    speedup = kept_measurement(folder / SPEEDUP_FILE, key, bfloat16_speedup)
    logger.info(
        "dtype auto is %s: bfloat16 is %.2f times as fast as float32 at %d rows on this CPU",
        _faster_dtype(speedup),
        speedup,
        _ROWS,
    )
    return speedup


def bfloat16_speedup() -> float:
    """Return how many times as fast this machine computes in bfloat16 as in float32, by a trial.

    It is the feed-forward half of decoder layers, of which products with weights are nearly
    everything: a product alone would be compiled to something else than between these.
    """
    return speedup(_trial(jnp.float32), _trial(jnp.bfloat16))


def speedup(base: Trial, other: Trial, rounds: int = _ROUNDS) -> float:
    """Return how many times as fast as `base` the other trial is.

    Each round times one right after the other, so that what else the machine does mostly meets
    both alike; the median leaves out the rounds in which it does not.
    """
    return median(base() / other() for _ in range(rounds))


def _trial(dtype: DTypeLike) -> Trial:
    # Zeros take as long as any other weights.
    wide, narrow = (_INTERMEDIATE, _HIDDEN), (_HIDDEN, _INTERMEDIATE)
    layers = [
        tuple(jnp.zeros(shape, dtype) for shape in ((_HIDDEN,), wide, wide, narrow))
        for _ in range(_LAYERS)
    ]

    def run() -> float:
        started = time.perf_counter()
        x = jnp.ones((_ROWS, _HIDDEN), dtype)
        for layer in layers:
            x = _feed_forward(x, *layer)
        x.block_until_ready()
        return time.perf_counter() - started

    run()  # compiles
    return run


@jax.jit
def _feed_forward(x: Array, scale: Array, gate: Array, up: Array, down: Array) -> Array:
    normed = x * scale[None, :]
    gated = jax.nn.silu(project(normed, gate)) * project(normed, up)
    return x + project(gated, down)
