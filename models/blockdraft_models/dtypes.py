"""Which element type a model computes in."""

import jax
import jax.numpy as jnp


def compute_dtype(name: str) -> jnp.dtype:
    """Return the element type a setting means.

    Args:
        name: "float32", "bfloat16", or "auto": bfloat16 on TPU, where it is native, and float32
            elsewhere.
    """
    if name == "auto":
        name = "bfloat16" if jax.default_backend() == "tpu" else "float32"
    return jnp.dtype(name)
