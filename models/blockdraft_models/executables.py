"""Compiled programs: the devices they need, the sizes they are made for, their folder."""

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

_FIBER_STACK = "--fibers_default_thread_stack_size"


def next_power_of_two(value: int) -> int:
    """Return the smallest power of two that is at least `value` and at least 1."""
    return 1 << max(value - 1, 0).bit_length()


def require_devices() -> None:
    """Raise `DeviceError` if JAX has no plugin for what it is told to use.

    `RuntimeError` has the plugin's own reason why it does not start: a chip may still belong to a
    process that is ending, so that trying again helps.
    """
    prepare_libtpu()
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:
        # The plugin of CUDA raises an AssertionError without a message.
        if str(error) and "list of known backends" not in str(error):
            raise
        raise DeviceError(
            f"JAX cannot use JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}: install its plugin, "
            "as blockdraft[cuda] or blockdraft[tpu] do, or unset the variable"
        ) from error


def prepare_libtpu() -> None:
    """Give this process what libtpu needs, before JAX starts it: stacks and locked memory."""
    if "tpu" not in os.environ.get("JAX_PLATFORMS", ""):
        return
    enlarge_libtpu_stacks()
    limit, maximum = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit != maximum:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (maximum, maximum))
    if maximum != resource.RLIM_INFINITY:
        logger.info("no more than %d MiB of memory can be locked for chips", maximum >> 20)


def enlarge_libtpu_stacks() -> None:
    """Enlarge the stacks of libtpu's fibers, unless LIBTPU_INIT_ARGS sets them.

    libtpu 0.0.42.1 overflows one as it writes a SparseCore's program, which ends the process.
    """
    arguments = os.environ.get("LIBTPU_INIT_ARGS", "")
    if _FIBER_STACK not in arguments:
        os.environ["LIBTPU_INIT_ARGS"] = f"{arguments} {_FIBER_STACK}={4 << 20}".strip()


def keep_executables(folder: Path | None = None) -> None:
    """Have JAX keep compiled programs in a folder; None: `xla` in that of BLOCKDRAFT_CACHE.

    Each number of cores has its own subfolder: XLA's CPU backend divides loops by the number, and
    JAX would load a program that was compiled for another one.
    """
    # This variable limits the cores that XLA's CPU client uses.
    cores = os.environ.get("NPROC") or usable_cores()
    folder = (folder or default_cache_dir() / "xla") / f"{cores}-cores"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def keep_programs(package: str, folder: Path | None = None) -> KeptPrograms:
    """Return the store of a package's compiled programs, in the same folder."""
    return KeptPrograms((folder or default_cache_dir() / "xla") / "programs", package)
