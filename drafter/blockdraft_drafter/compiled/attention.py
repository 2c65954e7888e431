"""Attention of draft layers: of blocks and of chains, on one device or on a mesh.

A block's own keys and values are never stored: the next block overwrites the guess anyway.
`attend_in_chunks` defines the result. It reads the context in chunks with a running softmax, so
that the work grows with the longest context of the batch while one executable serves every length.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from blockdraft_drafter.compiled.buffer import (
    CHUNK,
    BlockKV,
    CacheView,
    HeadSharding,
    LayerKV,
    widened,
)
from blockdraft_drafter.compiled.kernel import attend_in_kernel
from blockdraft_models.decoder.attention import EVERYTHING, Reach


@dataclass(frozen=True, slots=True)
class BlockAttend:
    """One layer's attention of a batch of blocks; an `Attend` of `blockdraft_models`."""

    slots: Int[Array, " blocks"]  # cache slot of each block; any in padding
    lengths: Int[Array, " blocks"]  # committed positions of each slot; 0 for padding
    block_size: int
    window: int | None  # this and the next two are as for `attend`
    is_causal: bool
    sharding: HeadSharding | None = None

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: LayerKV,
        reach: Reach = EVERYTHING,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], LayerKV]:
        """Attend; `cache` is the layer's draft KV cache, read and returned as it was."""

        def blocks(
            array: Float[Array, "tokens any_heads head_dim"],
        ) -> Float[Array, "blocks block any_heads head_dim"]:
            return array.reshape(-1, self.block_size, *array.shape[1:])

        attended = attend(
            blocks(q),
            (blocks(k), blocks(v)),
            CacheView(cache, self.slots, self.lengths),
            window=self.window,
            is_causal=self.is_causal,
            sharding=self.sharding,
        )
        return attended.reshape(q.shape), cache


@dataclass(frozen=True, slots=True)
class ChainAttend:
    """Attention of one more entry per sequence over its context and the entries drafted before.

    An `Attend` of `blockdraft_models`, whose cache are the keys and values of the drafted
    entries, each [blocks, entries, kv_heads, head_dim], or None before the first: they are not
    stored in the draft KV cache, since the next draft starts from the target's own tokens.
    """

    context: CacheView
    sharding: HeadSharding | None = None

    def __call__(
        self,
        q: Float[Array, "blocks heads head_dim"],
        k: Float[Array, "blocks kv_heads head_dim"],
        v: Float[Array, "blocks kv_heads head_dim"],
        cache: BlockKV | None,
        reach: Reach = EVERYTHING,
        /,
    ) -> tuple[Float[Array, "blocks heads head_dim"], BlockKV | None]:
        """Attend; the entry sees itself too."""
        own_kv: BlockKV = (k[:, None], v[:, None])
        if cache is not None:
            keys, values = (
                jnp.concatenate([before, new], axis=1)
                for before, new in zip(cache, own_kv, strict=True)
            )
            own_kv = (keys, values)
        attended = attend(
            q[:, None], own_kv, self.context, window=None, is_causal=True, sharding=self.sharding
        )
        return attended[:, 0], own_kv


def attend(
    q: Float[Array, "blocks queries heads head_dim"],
    own_kv: BlockKV,
    context: CacheView,
    *,
    window: int | None,
    is_causal: bool,
    sharding: HeadSharding | None,
) -> Float[Array, "blocks queries heads head_dim"]:
    """Attend to blocks' own keys and their contexts, each device with its heads.

    The queries, normalized and rotated, are at the last of the keys and values of `own_kv`, each
    [blocks, keys, kv_heads, head_dim]. Keys `window` or more positions away are invisible (None: no
    window), and if `is_causal` so are the keys after a position.
    """
    group, head_dim = q.shape[2] // own_kv[0].shape[2], q.shape[3]
    run = attend_in_kernel if sharding is not None and sharding.on_tpu else attend_in_chunks

    def attend_locally(
        q: Array, own_kv: BlockKV, layer: LayerKV, slots: Array, lengths: Array
    ) -> Array:
        """Attend with the heads of one device."""
        first_kv_head: int | Array = 0
        if sharding is not None and sharding.query_axis != sharding.kv_axis:
            # This device has all KV heads, but its query heads share one of them.
            first_head = jax.lax.axis_index(sharding.query_axis) * q.shape[2]
            first_kv_head = first_head // group
            keys, values = (
                jax.lax.dynamic_slice_in_dim(part, first_kv_head, 1, axis=2) for part in own_kv
            )
            own_kv = (keys, values)
        blocks, count, heads, _ = q.shape
        kv_heads, width = own_kv[0].shape[2], layer[0].shape[-1]
        grouped = q.reshape(blocks, count, kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
        keys, values = (widened(part.transpose(0, 2, 1, 3), width) for part in own_kv)
        attended = run(
            widened(grouped.transpose(0, 2, 1, 3, 4), width),
            (keys, values),
            CacheView(layer, slots, lengths, first_kv_head),
            window=window,
            is_causal=is_causal,
        )
        # The zeros that pad the values come out as zeros.
        narrow = attended[..., :head_dim].astype(q.dtype)
        return narrow.transpose(0, 2, 1, 3, 4).reshape(q.shape)

    if sharding is None:
        return attend_locally(q, own_kv, context.layer, context.slots, context.lengths)
    whole = PartitionSpec()
    queries = PartitionSpec(None, None, sharding.query_axis, None)
    keys = PartitionSpec(None, None, sharding.kv_axis, None)
    on_mesh = jax.shard_map(
        attend_locally,
        mesh=sharding.mesh,
        in_specs=(queries, keys, sharding.cache, whole, whole),
        out_specs=queries,
        # A kernel does not say on which axes its result varies.
        check_vma=False,
    )
    attended: Array = on_mesh(q, own_kv, context.layer, context.slots, context.lengths)
    return attended


def attend_in_chunks(
    queries: Float[Array, "blocks kv_heads queries group head_dim"],
    own_kv: BlockKV,
    context: CacheView,
    *,
    window: int | None,
    is_causal: bool,
) -> Float[Array, "blocks kv_heads queries group head_dim"]:
    """Attend to a block's own keys and to its context; sums are float32, as is the result.

    The own keys, each [blocks, kv_heads, keys, head_dim], follow the context, and the scaled
    queries are at the last of them: at all of them when a block is denoised, at the newest when a
    chain is continued.
    """
    count, kv_heads = queries.shape[2], queries.shape[1]
    own_count = own_kv[0].shape[2]
    offsets = jnp.arange(own_count - count, own_count)
    own_mask = _own_mask(offsets, jnp.arange(own_count), window, is_causal)
    # The own keys come first, so the running maximum is finite from the start.
    state = _attend_part(queries, *own_kv, own_mask, None)

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
    """Return the mask of the own keys that each query sees."""
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
    """Return the mask of the context positions that each query sees."""
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
    context: CacheView,
    kv_heads: int,
    start: Int[Array, ""],
) -> Float[Array, "blocks kv_heads chunk head_dim"]:
    """Return a chunk of each block's context."""
    chunk = (1, kv_heads, CHUNK, array.shape[-1])

    def read_slot(slot: Int[Array, ""]) -> Float[Array, "kv_heads chunk head_dim"]:
        return jax.lax.dynamic_slice(array, (slot, context.first_kv_head, start, 0), chunk)[0]

    return jax.vmap(read_slot)(context.slots)
