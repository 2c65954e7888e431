"""The element types that models compute in, and that targets are served in."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.kernels.library import in_kernels

KvCacheDtype = Literal["auto", "fp8"]
"""Numbers in a target's KV cache: as they are computed, or rounded to 8 bits, `FP8`."""
FP8: jnp.dtype = jnp.dtype(jnp.float8_e4m3fn)
"""Floats with 3 bits of mantissa and no infinity."""
_LARGEST_FP8 = 448.0


def compute_dtype(name: str) -> jnp.dtype:
    """Return a named element type; "auto" is bfloat16 on TPU, where it is native, else float32.

    Results that are kept and continued on other machines are computed in it. Serving has a choice
    of its own on CPU, `serving_dtype`.
    """
    if name == "auto":
        name = "bfloat16" if jax.default_backend() == "tpu" else "float32"
    return jnp.dtype(name)


def cache_dtype(compute: DTypeLike, kind: KvCacheDtype = "auto") -> jnp.dtype:
    """Return the element type of keys and values of a model that computes in `compute`.

    XLA's CPU backend writes no rows of narrower types: it would widen and narrow the whole cache at
    every step, which takes longer than all the rest (docs/adr/0014).
    """
    if jax.default_backend() == "cpu":
        compute = jnp.float32
    elif kind == "fp8":
        compute = FP8
    return jnp.dtype(compute)


def rounded_to_fp8(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Round to `FP8`; beyond its range, to its largest number."""
    return jnp.clip(x, -_LARGEST_FP8, _LARGEST_FP8).astype(FP8)


def serving_dtype(name: str) -> jnp.dtype:
    """Return the element type in which this process is to serve a target, or to draft for one.

    As `compute_dtype`, but "auto" is bfloat16 also on a CPU that computes in our kernels: they
    multiply its weights at the speed of memory, while XLA widens each of them at every step
    (docs/adr/0057). In either type completions do not depend on drafting, but the two types differ.
    """
    return compute_dtype("bfloat16" if name == "auto" and in_kernels() else name)
