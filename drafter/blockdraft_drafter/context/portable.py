"""Attention of draft blocks over their contexts and themselves, in plain JAX: the definition.

A block's own keys and values are never stored: the next block overwrites the guess anyway. The
context is read in chunks with a running softmax, so that the work grows with the longest context
of the batch while one executable serves every length.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from blockdraft_drafter.context.buffer import CHUNK, LayerContext

# Keys and values of the blocks themselves, each [blocks, kv_heads, keys, head_dim].
Keys = tuple[Array, Array]


class ContextView(NamedTuple):
    """One layer's contexts of a batch.

    Attributes:
        layer: Keys and values of every slot.
        slots: Context slot of each block, [blocks]; any in padding.
        lengths: Positions of each slot that exist, [blocks]; 0 in padding.
        first_kv_head: The KV head of the layer that is attended to first.
    """

    layer: LayerContext
    slots: Int[Array, " blocks"]
    lengths: Int[Array, " blocks"]
    first_kv_head: int | Int[Array, ""] = 0


def attend_in_chunks(
    queries: Float[Array, "blocks kv_heads queries group head_dim"],
    own: Keys,
    context: ContextView,
    *,
    window: int | None,
    is_causal: bool,
) -> Float[Array, "blocks kv_heads queries group head_dim"]:
    """Attend to a block's own keys and to its context; sums are float32, as is the result.

    The own keys follow the context, and the queries are at the last of them: at all of them when
    a block is denoised, at the newest when a chain is continued.

    Args:
        queries: Scaled queries.
        own: The block's own keys and values.
        context: The contexts.
        window: Keys this many positions away or further are invisible; None for all.
        is_causal: Whether a position sees only itself and what is before it.
    """
    count, kv_heads = queries.shape[2], queries.shape[1]
    own_count = own[0].shape[2]
    offsets = jnp.arange(own_count - count, own_count)
    own_mask = _own_mask(offsets, jnp.arange(own_count), window, is_causal)
    # The own keys come first, so the running maximum is finite from the start.
    state = _attend_part(queries, *own, own_mask, None)

    def add_chunk(chunk: Int[Array, ""], state: _State) -> _State:
        start = chunk * CHUNK
        mask = _context_mask(offsets, start + jnp.arange(CHUNK), context.lengths, window)
        keys, values = (_read(part, context, kv_heads, start) for part in context.layer)
        return _attend_part(queries, keys, values, mask, state)

    chunks = (jnp.max(context.lengths) + CHUNK - 1) // CHUNK
    _, normalizer, weighted = jax.lax.fori_loop(0, chunks, add_chunk, state)
    attended: Array = weighted / normalizer[..., None]
    return attended


def _own_mask(
    offsets: Int[Array, " queries"],
    keys: Int[Array, " keys"],
    window: int | None,
    is_causal: bool,
) -> Bool[Array, "1 queries keys"]:
    """Return which own keys each query sees."""
    distance = offsets[:, None] - keys[None, :]
    visible = distance >= 0 if is_causal else jnp.ones_like(distance, jnp.bool_)
    if window is not None:
        visible &= jnp.abs(distance) < window
    return visible[None]


def _context_mask(
    offsets: Int[Array, " queries"],
    positions: Int[Array, " chunk"],
    lengths: Int[Array, " blocks"],
    window: int | None,
) -> Bool[Array, "blocks queries_or_1 chunk"]:
    """Return which context positions each query sees."""
    live = (positions[None, :] < lengths[:, None])[:, None, :]
    if window is None:
        return live
    query_positions = lengths[:, None] + offsets[None, :]
    return live & (query_positions[:, :, None] - positions[None, None, :] < window)


# Running maximum and normalizer, [blocks, kv_heads, queries, group]; weighted values with a
# trailing head_dim. All float32.
_State = tuple[Array, Array, Array]


def _attend_part(
    queries: Float[Array, "blocks kv_heads queries group head_dim"],
    keys: Float[Array, "blocks kv_heads keys head_dim"],
    values: Float[Array, "blocks kv_heads keys head_dim"],
    mask: Bool[Array, "blocks_or_1 queries_or_1 keys"],
    state: _State | None,
) -> _State:
    """Fold some keys into a running softmax; `state` is None for the first."""
    queries = queries.astype(keys.dtype)
    scores = jnp.einsum("bkqgd,bksd->bkqgs", queries, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, :, None], scores, -jnp.inf)
    maximum = jnp.max(scores, axis=-1)
    if state is not None:
        maximum = jnp.maximum(maximum, state[0])
    weights = jnp.exp(scores - maximum[..., None])
    normalizer = jnp.sum(weights, axis=-1)
    weighted = jnp.einsum(
        "bkqgs,bksd->bkqgd",
        weights.astype(values.dtype),
        values,
        preferred_element_type=jnp.float32,
    )
    if state is not None:
        correction = jnp.exp(state[0] - maximum)
        normalizer += state[1] * correction
        weighted += state[2] * correction[..., None]
    return maximum, normalizer, weighted


def _read(
    array: Float[Array, "slots layer_kv_heads capacity head_dim"],
    context: ContextView,
    kv_heads: int,
    start: Int[Array, ""],
) -> Float[Array, "blocks kv_heads chunk head_dim"]:
    """Return one chunk of each block's context."""
    chunk = (1, kv_heads, CHUNK, array.shape[-1])

    def read_slot(slot: Int[Array, ""]) -> Float[Array, "kv_heads chunk head_dim"]:
        return jax.lax.dynamic_slice(array, (slot, context.first_kv_head, start, 0), chunk)[0]

    return jax.vmap(read_slot)(context.slots)
