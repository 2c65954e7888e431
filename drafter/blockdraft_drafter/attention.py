"""Attention of draft blocks over their contexts and themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from blockdraft_drafter.buffer import CHUNK, LayerContext


@dataclass(frozen=True, slots=True)
class BlockAttend:
    """One layer's attention of a batch of blocks; an `Attend` of `blockdraft_models`.

    A block's own keys and values are never stored: the next block overwrites the guess anyway.
    The context is read in chunks with a running softmax, so that the work grows with the longest
    context of the batch while one executable serves every length.

    Attributes:
        slots: Context slot of each block, [blocks]; out of range for padding.
        lengths: Committed positions of each slot, [blocks]; 0 for padding.
        block_size: Tokens per block.
        window: Keys this many positions away or further are invisible; None for all.
        is_causal: Whether a position sees only itself and what is before it.
    """

    slots: Int[Array, " blocks"]
    lengths: Int[Array, " blocks"]
    block_size: int
    window: int | None
    is_causal: bool

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: LayerContext,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], LayerContext]:
        """Attend; `cache` is the layer's context, read and returned as it was."""
        tokens, heads, head_dim = q.shape
        kv_heads, blocks = k.shape[1], self.slots.shape[0]
        block = (blocks, self.block_size, kv_heads)
        queries = q.reshape(*block, heads // kv_heads, head_dim) * head_dim**-0.5
        offsets = jnp.arange(self.block_size)
        attended = attend_with_context(
            queries,
            (k.reshape(*block, head_dim), v.reshape(*block, head_dim)),
            self._own_mask(offsets),
            ContextView(cache, self.slots, self.lengths),
            lambda positions: self._context_mask(offsets, positions),
        )
        return attended.astype(q.dtype).reshape(tokens, heads, head_dim), cache

    def _own_mask(self, offsets: Int[Array, " block"]) -> Bool[Array, "1 block block"]:
        """Return which block positions (last axis) each block position sees."""
        distance = offsets[:, None] - offsets[None, :]
        visible = jnp.ones_like(distance, jnp.bool_)
        if self.is_causal:
            visible &= distance >= 0
        if self.window is not None:
            visible &= jnp.abs(distance) < self.window
        return visible[None]

    def _context_mask(
        self, offsets: Int[Array, " block"], positions: Int[Array, " chunk"]
    ) -> Bool[Array, "blocks block_or_1 chunk"]:
        """Return which context positions each block position sees."""
        live = (positions[None, :] < self.lengths[:, None])[:, None, :]
        if self.window is None:
            return live
        query_positions = self.lengths[:, None] + offsets[None, :]
        near = query_positions[:, :, None] - positions[None, None, :] < self.window
        return live & near


class ContextView(NamedTuple):
    """One layer's contexts of a batch.

    Attributes:
        layer: Keys and values of every slot.
        slots: Context slot of each block, [blocks].
        lengths: Positions of each slot that exist, [blocks].
    """

    layer: LayerContext
    slots: Int[Array, " blocks"]
    lengths: Int[Array, " blocks"]


@dataclass(frozen=True, slots=True)
class ChainAttend:
    """Attention of one more entry per sequence over its context and the entries drafted before.

    An `Attend` of `blockdraft_models`, whose cache are the drafted entries: nothing of them is
    stored in the context, since the next draft starts from what the target said.

    Attributes:
        context: What was committed.
    """

    context: ContextView

    def nothing(self) -> LayerContext:
        """Return the cache before the first entry."""
        _, _, kv_heads, head_dim = self.context.layer[0].shape
        blocks = self.context.slots.shape[0]
        empty = jnp.zeros((blocks, 0, kv_heads, head_dim), self.context.layer[0].dtype)
        return empty, empty

    def __call__(
        self,
        q: Float[Array, "blocks heads head_dim"],
        k: Float[Array, "blocks kv_heads head_dim"],
        v: Float[Array, "blocks kv_heads head_dim"],
        cache: LayerContext,
        /,
    ) -> tuple[Float[Array, "blocks heads head_dim"], LayerContext]:
        """Attend; the entry sees itself too."""
        blocks, heads, head_dim = q.shape
        kv_heads = k.shape[1]
        keys, values = cache
        own = (
            jnp.concatenate([keys, k[:, None]], axis=1),
            jnp.concatenate([values, v[:, None]], axis=1),
        )
        lengths = self.context.lengths
        attended = attend_with_context(
            q.reshape(blocks, 1, kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5,
            own,
            jnp.ones((1, 1, own[0].shape[1]), jnp.bool_),
            self.context,
            lambda positions: (positions[None, :] < lengths[:, None])[:, None, :],
        )
        return attended.astype(q.dtype).reshape(blocks, heads, head_dim), own


def attend_with_context(
    queries: Float[Array, "blocks queries kv_heads group head_dim"],
    own: LayerContext,
    own_mask: Bool[Array, "blocks_or_1 queries keys"],
    context: ContextView,
    context_mask: Callable[[Int[Array, " chunk"]], Bool[Array, "blocks queries_or_1 chunk"]],
) -> Float[Array, "blocks queries kv_heads group head_dim"]:
    """Attend to a block's own keys and to its context, chunk by chunk, in float32.

    Args:
        queries: Scaled queries.
        own: The block's own keys and values, each [blocks, keys, kv_heads, head_dim].
        own_mask: Which of them each query sees; at least one each.
        context: The contexts.
        context_mask: Which of some positions of the context each query sees.
    """
    # The own keys come first, so the running maximum is finite from the start.
    state = _attend_part(queries, *own, own_mask, None)
    keys, values = context.layer

    def add_chunk(chunk: Int[Array, ""], state: _State) -> _State:
        start = chunk * CHUNK
        return _attend_part(
            queries,
            _read(keys, context.slots, start),
            _read(values, context.slots, start),
            context_mask(start + jnp.arange(CHUNK)),
            state,
        )

    chunks = (jnp.max(context.lengths) + CHUNK - 1) // CHUNK
    _, normalizer, weighted = jax.lax.fori_loop(0, chunks, add_chunk, state)
    attended: Array = (weighted / normalizer[..., None]).transpose(0, 3, 1, 2, 4)
    return attended


# Running maximum and normalizer, [blocks, kv_heads, group, block]; weighted values with a
# trailing head_dim. All float32.
_State = tuple[Array, Array, Array]


def _attend_part(
    queries: Float[Array, "blocks block kv_heads group head_dim"],
    keys: Float[Array, "blocks keys kv_heads head_dim"],
    values: Float[Array, "blocks keys kv_heads head_dim"],
    mask: Bool[Array, "blocks_or_1 block_or_1 keys"],
    state: _State | None,
) -> _State:
    """Fold some keys into a running softmax; `state` is None for the first."""
    scores = jnp.einsum("bqkgd,bskd->bkgqs", queries, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
    maximum = jnp.max(scores, axis=-1)
    if state is not None:
        maximum = jnp.maximum(maximum, state[0])
    weights = jnp.exp(scores - maximum[..., None])
    normalizer = jnp.sum(weights, axis=-1)
    weighted = jnp.einsum(
        "bkgqs,bskd->bkgqd",
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
    array: Float[Array, "slots capacity kv_heads head_dim"],
    slots: Int[Array, " blocks"],
    start: Int[Array, ""],
) -> Float[Array, "blocks chunk kv_heads head_dim"]:
    """Return one chunk of each named slot."""
    chunk = (1, CHUNK, *array.shape[2:])

    def read_slot(slot: Int[Array, ""]) -> Float[Array, "chunk kv_heads head_dim"]:
        return jax.lax.dynamic_slice(array, (slot, start, 0, 0), chunk)[0]

    return jax.vmap(read_slot)(slots)
