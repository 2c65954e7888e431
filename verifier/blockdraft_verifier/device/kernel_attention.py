"""Ragged paged attention by the Pallas kernel for TPU that ships with JAX.

The kernel reads only the pages a sequence has, with copies that overlap the arithmetic. It takes
our batch and cache as they are (`portable_attention`, which is also its oracle). Heads must be
whole lanes wide, and key heads of a number that fills tiles; what is narrower, or fewer, is padded
with zeros, in the cache too. There the device's own tiling would take the same room.

Source: jax.experimental.pallas.ops.tpu.ragged_paged_attention.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import ragged_paged_attention as library
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_verifier.device.portable_attention import RaggedBatch

LANES = 128
# The kernel holds two blocks of so many positions of the context in fast memory, and so many
# queries. They are the same in every step, so its products have one order. The library's own
# tables need a TPU at hand to choose from.
CONTEXT_BLOCK_TOKENS = 512
QUERY_BLOCK_TOKENS = 32


def padded(head_dim: int) -> int:
    """Return the width of a head as the kernel needs it."""
    return -(-head_dim // LANES) * LANES


def takes(config: DecoderConfig) -> bool:
    """Return whether the kernel computes a target's attention: no sinks, latent heads, canvases."""
    plain = not config.attention_sinks and config.latent is None and config.diffusion is None
    return plain and padded(config.head_dim) == LANES


def stored_heads(kv_heads: int, dtype: DTypeLike) -> int:
    """Return the least number of key heads, from `kv_heads` on, that fills the kernel's tiles."""
    packing = 4 // jnp.dtype(dtype).itemsize

    def tiled(heads: int) -> bool:
        tiles, rest = divmod(2 * heads, packing)
        return rest == 0 and (tiles in (1, 2, 4) or tiles % 8 == 0)

    return next(heads for heads in itertools.count(kv_heads) if tiled(heads))


def with_stored_heads(
    q: Float[Array, "tokens heads head_dim"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    stored: int,
) -> tuple[
    Float[Array, "tokens stored_q_heads head_dim"],
    Float[Array, "tokens stored_heads head_dim"],
    Float[Array, "tokens stored_heads head_dim"],
]:
    """Return queries, keys and values with further heads of zeros, up to `stored` key heads.

    The heads that were there stay first, so the attention to them is the first of the output.
    """
    kv_heads = k.shape[1]
    group, more = q.shape[1] // kv_heads, stored - kv_heads
    if not more:
        return q, k, v

    def with_zeros(heads: Array, count: int) -> Array:
        return jnp.pad(heads, ((0, 0), (0, count), (0, 0)))

    return with_zeros(q, more * group), with_zeros(k, more), with_zeros(v, more)


def ragged_paged_attention(
    q: Float[Array, "tokens heads head_dim"],
    cache: Float[Array, "pages page_size kv_slots padded_head_dim"],
    batch: RaggedBatch,
    kernel: Callable[..., Any] = library.ragged_paged_attention,
    window: int = 0,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend as `portable_attention` does; the output of padding rows, the last, is undefined.

    Stored heads are padded with zeros. `kernel` is the library's, or its reference. Keys `window`
    positions away or further are invisible, unless it is 0.
    """
    tokens, _, head_dim = q.shape
    _, page_size, _, width = cache.shape
    missing = max(0, QUERY_BLOCK_TOKENS - tokens)
    wide = jnp.pad(q, ((0, missing), (0, 0), (0, width - head_dim)))
    live = jnp.sum(jnp.diff(batch.row_starts) > 0, dtype=jnp.int32)
    most_pages = batch.page_table.shape[1]
    # A scale has the kernel widen what is stored in 8 bits.
    scale = None if cache.dtype == q.dtype else 1.0
    out: Array = kernel(
        wide,
        cache,
        batch.context_lengths,
        batch.page_table,
        batch.row_starts,
        live[None],
        sm_scale=head_dim**-0.5,
        k_scale=scale,
        v_scale=scale,
        sliding_window=window or None,
        num_kv_pages_per_block=min(most_pages, max(1, CONTEXT_BLOCK_TOKENS // page_size)),
        num_queries_per_block=QUERY_BLOCK_TOKENS,
    )
    return out[:tokens, :, :head_dim]
