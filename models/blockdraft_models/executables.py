"""Compiled programs: what runs them, the sizes they are made for, and where they are kept."""

import logging
import os
import resource
from pathlib import Path

import jax

from blockdraft_models.cache import default_cache_dir
from blockdraft_models.errors import DeviceError
from blockdraft_models.kept_programs import KeptPrograms
from blockdraft_models.processor import usable_cores

logger = logging.getLogger(__name__)


def next_power_of_two(value: int) -> int:
    """Return the smallest power of two that is at least `value` and at least 1."""
    return 1 << max(value - 1, 0).bit_length()


def require_devices() -> None:
    """Raise `DeviceError` if JAX has no plugin for what it is told to use.

    RuntimeError says, in the plugin's own words, why it does not start: a chip may still belong to
    a process that is ending, so that it helps to try again.
    """
    allow_locked_memory()
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:
        # Of CUDA an assertion without a word.
        if str(error) and "list of known backends" not in str(error):
            raise
        raise DeviceError(
            f"JAX cannot use JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}: install its plugin, "
            "as blockdraft[cuda] or blockdraft[tpu] do, or unset the variable"
        ) from error


def allow_locked_memory() -> None:
    """Raise the limit of memory that is locked, as what a TPU reads and writes is, to the most."""
    if "tpu" not in os.environ.get("JAX_PLATFORMS", ""):
        return
    limit, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit != most:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))
    if most != resource.RLIM_INFINITY:
        logger.info("no more than %d MiB of memory can be locked for chips", most >> 20)


def keep_executables(folder: Path | None = None) -> None:
    """Have JAX keep what it compiles, in `xla` of the folder of BLOCKDRAFT_CACHE when None.

    Apart by the number of cores: XLA's CPU backend divides loops by it, and JAX would find what was
    compiled for another one.
    """
    # A variable by which XLA's CPU client is told to use fewer.
    cores = os.environ.get("NPROC") or usable_cores()
    folder = (folder or default_cache_dir() / "xla") / f"{cores}-cores"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def keep_programs(package: str, folder: Path | None = None) -> KeptPrograms:
    """Return where the compiled programs of a package are kept, in the same folder."""
    return KeptPrograms((folder or default_cache_dir() / "xla") / "programs", package)
