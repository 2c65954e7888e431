"""Causal attention of a ragged batch over a paged KV cache.

The batch is flat: the tokens of row 0, then those of row 1, and so on, then padding. The cache
is `[pages, page_size, 2 * kv_heads, head_dim]` with keys in even and values in odd head
slots; both follow the convention of JAX's ragged paged attention kernel for TPU. This module is
the portable implementation and that kernel's oracle. One slot alone is a key that is the value too
(latent attention).

Rows are cut into **query tiles** of a fixed number of tokens. A fixed number of tiles at a time
read their context in chunks with an online softmax (Milakov and Gimelshein 2018), in a loop whose
trip count follows the longest context of these few: work grows with use, shapes do not. So every
product has the same shape in every step, and a query's result the same bits (docs/adr/0057).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.attention import EVERYTHING, Reach
from blockdraft_models.decoder.products import row_sums
from blockdraft_models.kernels import calls
from blockdraft_models.kernels.library import in_kernels
from blockdraft_models.platform import by_platform

CONTEXT_CHUNK_TOKENS = 64
TILE_TOKENS = 4
"""Tokens of a tile; a row of one token leaves the others empty."""
# Tiles that go through their context side by side, all as far as the longest of them.
_TILES_TOGETHER = 4
# Further than any position.
FAR = 2**30

# The parts of a reach that a program takes as arrays: whether the window applies, and sinks.
_DynamicReach = tuple[Array | None, Array | None]


class RaggedBatch(NamedTuple):
    """Rows, pages and slots of the tokens of a flat batch."""

    # First token of each row, then the number of tokens; padding rows are empty.
    row_starts: Int[Array, " rows_and_end"]
    # Length of each row's sequence, the row's own tokens included.
    context_lengths: Int[Array, " rows"]
    # Pages of each row's sequence in order; entries past the end are ignored.
    page_table: Int[Array, "rows max_pages"]
    # Cache slot of each token, `page * page_size + offset`; out of range for padding.
    slots: Int[Array, " tokens"]
    # Bool[Array, "rows"], whether all tokens of a row see each other; None if those of none do.
    joint: Array | None = None

    def moved(self, pages: Int[Array, ""], page_size: int, total_pages: int) -> "RaggedBatch":
        """Return the same batch in a cache of `total_pages`, `pages` pages further on."""
        slots = self.slots + pages * page_size
        # Padding stays out of range: slots are numbered within one layer until here.
        padding = jnp.arange(slots.shape[0], dtype=jnp.int32) >= self.row_starts[-1]
        return self._replace(
            page_table=self.page_table + pages,
            slots=jnp.where(padding, total_pages * page_size, slots),
        )


class QueryTiles(NamedTuple):
    """The rows of a batch cut into tiles."""

    row: Int[Array, " tiles"]  # the row each tile belongs to
    # Flat index of each query of each tile; out of range for padding.
    token: Int[Array, "tiles tile_tokens"]
    position: Int[Array, "tiles tile_tokens"]  # position of each query in its sequence
    # Position of the last key that a query sees, and the one that its window reaches back from:
    # mostly its own.
    last: Int[Array, "tiles tile_tokens"]
    first: Int[Array, "tiles tile_tokens"]


def cut_into_tiles(batch: RaggedBatch, token_count: int, tile_tokens: int) -> QueryTiles:
    """Cut the rows of a batch into tiles of so many tokens, those of a row in order.

    The shapes depend on the batch's shapes only.
    """
    row_count = batch.context_lengths.shape[0]
    # Most tiles any split of the tokens over the rows can need.
    tile_count = (token_count + row_count * (tile_tokens - 1)) // tile_tokens

    starts, lengths = batch.row_starts[:-1], jnp.diff(batch.row_starts)
    tiles_of_row = (lengths + tile_tokens - 1) // tile_tokens
    ends = jnp.cumsum(tiles_of_row)
    tile = jnp.arange(tile_count, dtype=jnp.int32)
    row = jnp.minimum(jnp.searchsorted(ends, tile, side="right"), row_count - 1).astype(jnp.int32)
    index_in_row = tile - (ends - tiles_of_row)[row]
    offset = index_in_row[:, None] * tile_tokens + jnp.arange(tile_tokens, dtype=jnp.int32)[None, :]
    live = (offset < lengths[row][:, None]) & (tile < ends[-1])[:, None]
    token = jnp.where(live, starts[row][:, None] + offset, token_count)
    position = (batch.context_lengths - lengths)[row][:, None] + offset
    position = last = first = jnp.where(live, position, -1)
    if batch.joint is not None:
        joint = batch.joint[row][:, None] & live
        ends = batch.context_lengths[row][:, None]
        last = jnp.where(joint, ends - 1, position)
        first = jnp.where(joint, ends - lengths[row][:, None], position)
    return QueryTiles(row, token, position, last, first)


def in_tiles(
    q: Float[Array, "tokens heads head_dim"], tiles: QueryTiles, kv_heads: int
) -> Float[Array, "tiles kv_heads queries head_dim"]:
    """Return the operands of one matrix product per tile and KV head.

    The rows of each are (query, head of the group).
    """
    _, heads, head_dim = q.shape
    tile_count, tile_tokens = tiles.token.shape
    queries = jnp.take(q, tiles.token, axis=0, mode="fill", fill_value=0)
    queries = queries.reshape(tile_count, tile_tokens, kv_heads, heads // kv_heads, head_dim)
    return queries.transpose(0, 2, 1, 3, 4).reshape(tile_count, kv_heads, -1, head_dim)


def in_order(
    out: Float[Array, "tiles kv_heads queries head_dim"],
    tiles: QueryTiles,
    like: Float[Array, "tokens heads head_dim"],
) -> Float[Array, "tokens heads head_dim"]:
    """Return the output of tiles in the order of tokens, in the shape and type of `like`."""
    (tile_count, tile_tokens), (_, heads, head_dim) = tiles.token.shape, like.shape
    kv_heads = out.shape[1]
    out = out.reshape(tile_count, kv_heads, tile_tokens, heads // kv_heads, head_dim)
    out = out.transpose(0, 2, 1, 3, 4).reshape(tile_count * tile_tokens, heads, head_dim)
    result = jnp.zeros(like.shape, like.dtype)
    return result.at[tiles.token.reshape(-1)].set(out.astype(like.dtype), mode="drop")


def write_kv(
    cache: Float[Array, "pages page_size *position"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"] | None,
    slots: Int[Array, " tokens"],
) -> Float[Array, "pages page_size *position"]:
    """Return `cache` with the tokens' keys and values at their slots; keys alone without values."""
    pages, page_size, *position = cache.shape
    kv = k if v is None else jnp.stack([k, v], axis=2)
    kv = kv.reshape(k.shape[0], *position).astype(cache.dtype)
    flat = cache.reshape(pages * page_size, *position)
    return flat.at[slots].set(kv, mode="drop").reshape(cache.shape)


def attend(
    q: Float[Array, "tokens heads head_dim"],
    cache: Float[Array, "pages page_size kv_slots head_dim"],
    batch: RaggedBatch,
    reach: Reach = EVERYTHING,
) -> Float[Array, "tokens heads head_dim"]:
    """Return `ragged_paged_attention`, on a CPU by its kernel if there is one."""

    def in_tiles(q: Array, cache: Array, batch: RaggedBatch, reach: _DynamicReach) -> Array:
        tiles = cut_into_tiles(batch, q.shape[0], TILE_TOKENS)
        of_tiles = Reach(window, *reach, canvas=canvas)
        return ragged_paged_attention(q, cache, batch, tiles, of_tiles)

    def in_kernel(q: Array, cache: Array, batch: RaggedBatch, reach: _DynamicReach) -> Array:
        applies, sinks = reach
        width = jnp.full(1, window, jnp.int32)
        if applies is not None:
            width = jnp.where(applies, width, 0)
        scores = jnp.zeros(0, jnp.float32) if sinks is None else sinks
        rows = batch.row_starts, batch.context_lengths, batch.page_table
        joint = jnp.zeros(0, jnp.int32) if batch.joint is None else batch.joint.astype(jnp.int32)
        return calls.attention(q, cache, *rows, width, scores, joint, canvas)

    window, canvas, dynamic = reach.window, reach.canvas, (reach.applies, reach.sinks)
    on_cpu = in_kernel if in_kernels() else in_tiles
    out: Array = by_platform(q, cache, batch, dynamic, cpu=on_cpu, default=in_tiles)
    return out


def ragged_paged_attention(
    q: Float[Array, "tokens heads head_dim"],
    cache: Float[Array, "pages page_size kv_slots head_dim"],
    batch: RaggedBatch,
    tiles: QueryTiles,
    reach: Reach = EVERYTHING,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend causally from every token to its own sequence, itself and its canvas included.

    The keys and values of the batch's own tokens must already be in the cache. Scores are scaled
    by `head_dim ** -0.5`; the softmax is in float32.
    """
    _, heads, head_dim = q.shape
    kv_heads = max(1, cache.shape[2] // 2)
    tile_count, tile_tokens = tiles.token.shape
    queries = in_tiles(q, tiles, kv_heads).astype(jnp.float32) * head_dim**-0.5
    last, first = (
        jnp.repeat(positions, heads // kv_heads, axis=1)
        for positions in (reach.last(tiles.last), tiles.first)
    )
    if reach.sinks is not None:
        # One sink per row of a tile's products; the rows are (query, head of the group).
        sinks = jnp.tile(reach.sinks.reshape(kv_heads, -1), (1, tile_tokens))
        reach = reach._replace(sinks=sinks)
    padding = -tile_count % _TILES_TOGETHER
    # No shape of what follows depends on that of the batch, but for the number of tiles.
    queries = jnp.pad(queries, ((0, padding), (0, 0), (0, 0), (0, 0)))
    last, first = (
        jnp.pad(positions, ((0, padding), (0, 0)), constant_values=-1)
        for positions in (last, first)
    )
    page_tables = jnp.pad(batch.page_table[tiles.row], ((0, padding), (0, 0)))

    def attend(index: Int[Array, ""], out: Array) -> Array:
        start = index * _TILES_TOGETHER
        group = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=_TILES_TOGETHER)
        attended = _attend_to_context(
            group(queries), group(last), group(first), group(page_tables), cache, reach
        )
        return jax.lax.dynamic_update_slice_in_dim(out, attended, start, 0)

    # Live tiles come first.
    live_count = jnp.sum(tiles.position[:, 0] >= 0, dtype=jnp.int32)
    groups = (live_count + _TILES_TOGETHER - 1) // _TILES_TOGETHER
    out = jax.lax.fori_loop(jnp.int32(0), groups, attend, jnp.zeros_like(queries))
    return in_order(out[:tile_count], tiles, q)


def _attend_to_context(
    queries: Float[Array, "tiles kv_heads queries head_dim"],
    last: Int[Array, "tiles queries"],
    first: Int[Array, "tiles queries"],
    page_table: Int[Array, "tiles max_pages"],
    cache: Float[Array, "pages page_size kv_slots head_dim"],
    reach: Reach,
) -> Float[Array, "tiles kv_heads queries head_dim"]:
    """Return the attention of some tiles, reading as far as the longest of their contexts."""
    _, page_size, kv_slots, head_dim = cache.shape
    kv_heads, tile_count = max(1, kv_slots // 2), len(queries)
    chunk_pages = max(1, CONTEXT_CHUNK_TOKENS // page_size)
    chunk_tokens = chunk_pages * page_size
    table = jnp.pad(page_table, ((0, 0), (0, -page_table.shape[1] % chunk_pages)))

    def attend_to_chunk(
        index: Int[Array, ""], state: tuple[Array, Array, Array]
    ) -> tuple[Array, Array, Array]:
        top, total, mixed = state
        pages = jax.lax.dynamic_slice_in_dim(table, index * chunk_pages, chunk_pages, axis=1)
        kv = cache[pages].astype(jnp.float32)
        kv = kv.reshape(tile_count, chunk_tokens, kv_heads, -1, head_dim)
        key, value = kv[:, :, :, 0], kv[:, :, :, -1]
        scores = jnp.einsum("tkqd,tckd->tkqc", queries, key)
        key_position = index * chunk_tokens + jnp.arange(chunk_tokens, dtype=jnp.int32)
        visible = reach.sees(key_position[None, None, :], last[:, :, None], first[:, :, None])
        scores = jnp.where(visible[:, None], scores, -jnp.inf)
        new_top = jnp.maximum(top, scores.max(axis=-1))
        # A query with nothing visible yet has top = -inf; keep the exponent finite.
        safe_top = jnp.where(jnp.isneginf(new_top), 0.0, new_top)
        weights = jnp.exp(scores - safe_top[..., None])
        shrink = jnp.exp(top - safe_top)
        total = total * shrink + row_sums(weights)
        mixed = mixed * shrink[..., None] + jnp.einsum("tkqc,tckd->tkqd", weights, value)
        return new_top, total, mixed

    shape = queries.shape[:3]
    state = (jnp.full(shape, -jnp.inf), jnp.zeros(shape), jnp.zeros((*shape, head_dim)))
    chunk_count = (jnp.max(last) + chunk_tokens) // chunk_tokens
    first_chunk: int | Int[Array, ""] = 0
    if reach.window:
        # Chunks that no window reaches back to are left out; they would add nothing.
        first_chunk = reach.first(jnp.min(jnp.where(last < 0, FAR, first))) // chunk_tokens
    top, total, mixed = jax.lax.fori_loop(first_chunk, chunk_count, attend_to_chunk, state)
    if reach.sinks is not None:
        total = total + jnp.exp(reach.sinks[None] - jnp.where(jnp.isneginf(top), 0.0, top))
    out: Array = mixed / jnp.where(total == 0.0, 1.0, total)[..., None]
    return out
