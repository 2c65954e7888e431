"""The kernels as functions of JAX; call them only where `library.in_kernels` is true."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real


def product(
    x: Float[Array, "rows in"], weight: Real[Array, "out _"], dtype: str, format: str = ""
) -> Float[Array, "rows out"]:
    """Return `x @ weight.T`.

    The weight [out in] is float32, bfloat16 or int8, or in a `decoder.stored.Format`, as bytes.
    """
    shape = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), dtype)
    return jax.ffi.ffi_call("blockdraft_product", shape)(x, weight, format=format)


def row_sums(x: Float[Array, "rows width"]) -> Float[Array, " rows"]:
    """Return the sum of each float32 row."""
    shape = jax.ShapeDtypeStruct(x.shape[:1], jnp.float32)
    return jax.ffi.ffi_call("blockdraft_row_sums", shape)(x)


def normalize(
    x: Float[Array, "rows width"], scale: Float[Array, " width"], eps: float, offset: float
) -> Float[Array, "rows width"]:
    """Normalize each row as `decoder.layer.normalize` does."""
    call = jax.ffi.ffi_call("blockdraft_normalize", jax.ShapeDtypeStruct(x.shape, x.dtype))
    return call(x, scale, eps=np.float32(eps), offset=np.float32(offset))


def attention(
    q: Float[Array, "tokens heads head_dim"],
    cache: Float[Array, "pages page_size kv_slots head_dim"],
    row_starts: Int[Array, " rows_and_end"],
    context_lengths: Int[Array, " rows"],
    page_table: Int[Array, "rows max_pages"],
    window: Int[Array, "1"],
    sinks: Float[Array, " heads_or_none"],
    joint: Int[Array, " rows_or_none"],
    canvas: int,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend as `ragged_paged_attention` does; a window of 0 is none, and `joint` 1 or 0."""
    call = jax.ffi.ffi_call("blockdraft_attention", jax.ShapeDtypeStruct(q.shape, q.dtype))
    operands = q, cache, row_starts, context_lengths, page_table, window, sinks, joint
    return call(*operands, canvas=np.int64(canvas))
