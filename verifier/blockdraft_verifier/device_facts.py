"""What the devices of this process are, and what compiles for them."""

import platform
from importlib.metadata import version

import jax

from blockdraft_models.processor import processor_facts, usable_cores

# What Linux calls a processor's name and its instructions, on x86 and on ARM.
_CPU_KEYS = ("model name", "flags", "CPU part", "Features")


def device_kind() -> str:
    """Name the kind of device.

    All CPUs are of one kind to JAX, but XLA chooses instructions by what the processor has, and
    divides some sums by the number of cores it may use.
    """
    kind: str = jax.local_devices()[0].device_kind
    if jax.default_backend() != "cpu":
        return kind
    return f"{kind}, {usable_cores()} cores, {_processor()}"


def compiler() -> str:
    """Name the versions of jaxlib and of the platform's compiler, such as libtpu."""
    platform_version = jax.local_devices()[0].client.platform_version
    return f"jaxlib {version('jaxlib')}, {platform_version}"


def _processor() -> str:
    facts = processor_facts()
    known = [facts[key] for key in _CPU_KEYS if key in facts]
    return ", ".join(known) or platform.processor()
