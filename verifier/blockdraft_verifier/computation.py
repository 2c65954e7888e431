"""The identity of what a verifier computes: its target, and all that its numerics depend on.

Two verifiers of the same target need not give the same tokens: in another element type, on another
device or compiled by another version, logits differ in their last bits, and a near tie falls to the
other token. A completion may go on only on a verifier with the same computation.
"""

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Literal

import jax

from blockdraft_models.kernels.library import arithmetic
from blockdraft_models.precision import KvCacheDtype
from blockdraft_models.processor import processor_facts, usable_cores

_HEX_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Computation:
    """Everything that tokens depend on besides the request."""

    target_fingerprint: str  # identity of the target's weights and configuration
    dtype: str  # element type of weights and activations
    weights: Literal["stored", "float", "int8"]  # form in which the matrices of layers are held
    kv_cache_dtype: KvCacheDtype  # whether keys and values are rounded
    device_kind: str  # what it runs on; of a CPU also its instructions
    device_count: int  # how many of them the target is divided over
    compiler: str  # version of jaxlib and of the device's own compiler
    # Whether all compiled steps are batch-invariant; empty before the self-test. The numerics
    # classes are left out: they change with the drafter, whose blocks decide what is compiled. The
    # name of the field is part of the fingerprint.
    rounding: Literal["", "exact", "inexact"] = ""
    adapters: tuple[str, ...] = ()  # name and fingerprint of each

    @property
    def fingerprint(self) -> str:
        """Identity of all of it, 16 hex digits."""
        facts = asdict(self)
        if not self.adapters:
            del facts["adapters"]  # versions that had none go on where this one began
        parts = json.dumps(facts, sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()[:_HEX_DIGITS]


# Linux's keys of a processor's name and instructions, on x86 and on ARM.
_CPU_KEYS = ("model name", "flags", "CPU part", "Features")


def device_kind() -> str:
    """Name the kind of device.

    All CPUs are of one kind to JAX, but XLA chooses instructions by what the processor has, and
    divides some sums by the number of cores it may use.
    """
    kind: str = jax.local_devices()[0].device_kind
    if jax.default_backend() != "cpu":
        return kind
    facts = processor_facts()
    processor = ", ".join(facts[key] for key in _CPU_KEYS if key in facts)
    return f"{kind}, {usable_cores()} cores, {processor or platform.processor()}"


def compiler() -> str:
    """Name the versions of jaxlib, of the platform's compiler, such as libtpu, and of kernels."""
    platform_version = jax.local_devices()[0].client.platform_version
    return f"jaxlib {version('jaxlib')}, {platform_version}, {arithmetic()}"
