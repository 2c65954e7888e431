"""The element types that models compute in, and that targets are served in."""

import jax
import jax.numpy as jnp
from jaxtyping import DTypeLike

from blockdraft_models.kernels.library import in_kernels


def compute_dtype(name: str) -> jnp.dtype:
    """Return a named element type; "auto" is bfloat16 on TPU, where it is native, else float32.

    Results that are kept and continued on other machines are computed in it. Serving has a choice
    of its own on CPU, `serving_dtype`.
    """
    if name == "auto":
        name = "bfloat16" if jax.default_backend() == "tpu" else "float32"
    return jnp.dtype(name)


def cache_dtype(compute: DTypeLike) -> jnp.dtype:
    """Return the element type of keys and values of a model that computes in `compute`.

    XLA's CPU backend writes no rows of bfloat16: it would widen and narrow the whole cache at every
    step, which takes longer than all the rest (docs/adr/0014).
    """
    return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else compute)


def serving_dtype(name: str) -> jnp.dtype:
    """Return the element type in which this process is to serve a target, or to draft for one.

    As `compute_dtype`, but "auto" is bfloat16 also on a CPU that computes in our kernels: they
    multiply its weights at the speed of memory, while XLA widens each of them at every step
    (docs/adr/0057). In either type completions do not depend on drafting, but the two types differ.
    """
    return compute_dtype("bfloat16" if name == "auto" and in_kernels() else name)
