"""The memory of a device that a KV cache may take."""

import os
from pathlib import Path

import jax

# The rest of an accelerator's memory is for the intermediate results of steps.
_ACCELERATOR_SHARE = 0.85
# Memory of a CPU is shared with other processes, and a cache takes all of its memory at once.
_CPU_SHARE = 1 / 8
_MOST_CPU_BYTES = 1 << 30
# The limit of a container, by version 2 of control groups; `max` for none.
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def cache_budget_bytes(arrays: object, further_bytes: int = 0) -> int:
    """Return the bytes of each device that a KV cache may take beside arrays, a pytree, and others.

    On accelerators it is the same on every host of a slice: it follows from the kind of device and
    the arrays alone.
    """
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return min(int(_memory_bytes() * _CPU_SHARE), _MOST_CPU_BYTES)
    used = device_bytes(arrays) + further_bytes
    return max(int(stats["bytes_limit"] * _ACCELERATOR_SHARE) - used, 0)


def device_bytes(arrays: object) -> int:
    """Return the bytes of a device that a pytree of arrays takes; a repeated array counts once."""
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(arrays) if isinstance(leaf, jax.Array)}
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves.values())


def _memory_bytes() -> int:
    """Return the memory of this machine, or what its container may use of it."""
    physical: int = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = _CONTAINER_LIMIT.read_text().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdecimal() else physical
