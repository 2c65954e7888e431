"""What the devices of this process are, and what compiles for them."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import jax

_CPU_INFO = Path("/proc/cpuinfo")
# What Linux calls a processor's name and its instructions, on x86 and on ARM.
_CPU_KEYS = ("model name", "flags", "CPU part", "Features")


def device_kind() -> str:
    """Name the kind of device.

    All CPUs are of one kind to JAX, but XLA chooses instructions by what the processor has, and
    divides some sums by the number of its cores.
    """
    kind: str = jax.local_devices()[0].device_kind
    if jax.default_backend() != "cpu":
        return kind
    return f"{kind}, {os.cpu_count()} cores, {_processor()}"


def compiler() -> str:
    """Name the versions of jaxlib and of the platform's compiler, such as libtpu."""
    platform_version = jax.local_devices()[0].client.platform_version
    return f"jaxlib {version('jaxlib')}, {platform_version}"


def _processor() -> str:
    try:
        first, _, _ = _CPU_INFO.read_text(encoding="utf-8").partition("\n\n")
    except OSError:
        return platform.processor()
    lines = (line.partition(":") for line in first.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    return ", ".join(facts[key] for key in _CPU_KEYS if key in facts)
