"""Which element type a model computes in, and which one a target is served in."""

import jax
import jax.numpy as jnp
from jaxtyping import DTypeLike

from blockdraft_models.kernels.library import in_kernels


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

    As `compute_dtype`, but "auto" is bfloat16 also on a CPU that computes in our kernels: they
    multiply its weights at the speed of memory, while XLA widens each of them at every step
    (docs/adr/0057). Completions do not depend on drafting in either, but they differ between them.
    """
    return compute_dtype("bfloat16" if name == "auto" and in_kernels() else name)
