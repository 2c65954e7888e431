"""Which element type a model computes in."""

import jax
import jax.numpy as jnp
from jaxtyping import DTypeLike


def compute_dtype(name: str) -> jnp.dtype:
    """Return the element type a setting means.

    Args:
        name: "float32", "bfloat16", or "auto": bfloat16 on TPU, where it is native, and float32
            elsewhere. What serves has a choice of its own on CPU (`precision.serving`).
    """
    if name == "auto":
        name = "bfloat16" if jax.default_backend() == "tpu" else "float32"
    return jnp.dtype(name)


def cache_dtype(compute: DTypeLike) -> jnp.dtype:
    """Return the element type of keys and values kept on this process's devices.

    XLA's CPU backend writes no rows of bfloat16: it would widen and narrow the whole cache at every
    step, which takes longer than all the rest (docs/adr/0014).

    Args:
        compute: What the model computes in.
    """
    return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else compute)
