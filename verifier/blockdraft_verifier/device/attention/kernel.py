"""Ragged paged attention by the Pallas kernel for TPU that ships with JAX.

The kernel reads only the pages a sequence has, with copies that overlap the arithmetic. It takes
our batch and cache as they are (`portable.py`, which is also its oracle); heads must be whole
lanes wide, so narrower ones are padded with zeros, in the cache too.

Source: jax.experimental.pallas.ops.tpu.ragged_paged_attention.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import ragged_paged_attention as library
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from blockdraft_verifier.device.attention.portable import RaggedBatch

LANES = 128
# What the kernel holds in fast memory at once: two blocks of this many positions of the context,
# and this many queries. The library's own tables need a TPU at hand to choose from.
CONTEXT_BLOCK_TOKENS = 512
QUERY_BLOCK_TOKENS = 32


def padded(head_dim: int) -> int:
    """Return the width of a head as the kernel needs it."""
    return -(-head_dim // LANES) * LANES


def supports(heads: int, kv_heads: int, dtype: DTypeLike) -> bool:
    """Return whether the kernel can tile this many heads, on one device, of this type."""
    packing = 4 // jnp.dtype(dtype).itemsize
    tiles, rest = divmod(2 * kv_heads, packing)
    return heads % kv_heads == 0 and rest == 0 and (tiles in (1, 2, 4) or tiles % 8 == 0)


def ragged_paged_attention(
    q: Float[Array, "tokens heads head_dim"],
    cache: Float[Array, "pages page_size kv_slots padded_head_dim"],
    batch: RaggedBatch,
    kernel: Callable[..., Any] = library.ragged_paged_attention,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend causally from every token to its own sequence, itself included.

    The keys and values of the batch's own tokens must already be in the cache. What padding
    tokens get is undefined.

    Args:
        q: Queries.
        cache: Keys and values, heads padded with zeros.
        batch: Where the tokens belong; padding rows come last.
        kernel: The library's kernel, or its reference.
    """
    tokens, _, head_dim = q.shape
    _, page_size, _, width = cache.shape
    wide = jnp.pad(q, ((0, 0), (0, 0), (0, width - head_dim)))
    live = jnp.sum(jnp.diff(batch.row_starts) > 0, dtype=jnp.int32)
    most_pages = batch.page_table.shape[1]
    out: Array = kernel(
        wide,
        cache,
        batch.context_lengths,
        batch.page_table,
        batch.row_starts,
        live[None],
        sm_scale=head_dim**-0.5,
        num_kv_pages_per_block=min(most_pages, max(1, CONTEXT_BLOCK_TOKENS // page_size)),
        num_queries_per_block=min(tokens, QUERY_BLOCK_TOKENS),
    )
    return out[..., :head_dim]
