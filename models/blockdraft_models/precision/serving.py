"""The element type a target is served in."""

import functools
import logging
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib.version

from blockdraft_models.decoder.dtypes import compute_dtype
from blockdraft_models.precision.kept import kept_measurement
from blockdraft_models.precision.probe import ROWS, bfloat16_speedup, trial_forms
from blockdraft_models.processor import this_processor
from blockdraft_models.weights.cache_dir import default_cache_dir

logger = logging.getLogger(__name__)

CPU_DTYPES = ("float32", "bfloat16")
FILE_NAME = "bfloat16-speedup.json"
# At a tie bfloat16 is the better choice: its steps all round alike (docs/adr/0018), and trials on a
# busy machine scatter by more than this.
_LEAST_SPEEDUP = 0.95


def serving_dtype(name: str) -> jnp.dtype:
    """Return the element type in which this process is to serve a target, or to draft for one.

    Answers do not depend on drafting in either, but they differ between them: what is kept and
    continued on other machines is made in `compute_dtype`.

    Args:
        name: "float32", "bfloat16", or "auto": bfloat16 on TPU; on CPU what the environment
            variable BLOCKDRAFT_CPU_DTYPE says, or else the faster one of both on this machine,
            measured the first time, which takes seconds; float32 elsewhere.

    Raises:
        ValueError: If the variable is neither.
    """
    if name == "auto" and jax.default_backend() == "cpu":
        name = _pinned() or faster_dtype(cpu_bfloat16_speedup())
    return compute_dtype(name)


def cpu_bfloat16_speedup() -> float:
    """Return how many times as fast bfloat16 is as float32 on this CPU, measured the first time."""
    return _kept_speedup(default_cache_dir())


def faster_dtype(speedup: float) -> str:
    """Return what to compute in, given how many times as fast bfloat16 is as float32."""
    return "bfloat16" if speedup >= _LEAST_SPEEDUP else "float32"


def _pinned() -> str | None:
    name = os.environ.get("BLOCKDRAFT_CPU_DTYPE")
    if name and name not in CPU_DTYPES:
        raise ValueError(f"BLOCKDRAFT_CPU_DTYPE must be {' or '.join(CPU_DTYPES)}, got {name}")
    return name or None


# Kept in the process too: what asks twice gets the same also where no file can be written.
@functools.cache
def _kept_speedup(folder: Path) -> float:
    forms = " and ".join(map(str, trial_forms()))
    key = f"{this_processor()}, jaxlib {jaxlib.version.__version__}, products {forms}"
    speedup = kept_measurement(folder / FILE_NAME, key, bfloat16_speedup)
    logger.info(
        "dtype auto is %s: bfloat16 is %.2f times as fast as float32 at %d rows on this CPU",
        faster_dtype(speedup),
        speedup,
        ROWS,
    )
    return speedup
