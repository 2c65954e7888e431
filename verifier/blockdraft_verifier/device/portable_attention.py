"""Causal attention of a ragged batch over a paged KV cache.

The batch is flat: the tokens of row 0, then those of row 1, and so on, then padding. The cache
is `[pages, page_size, 2 * kv_heads, head_dim]` with keys in even and values in odd head
slots; both follow the convention of JAX's ragged paged attention kernel for TPU. This module is
the portable implementation and that kernel's oracle.

Rows are cut into **query tiles** of a fixed number of tokens, so that a long prompt chunk beside
short decoding rows does not pad them all to its length. A few tiles at a time read their context in
chunks with an online softmax (Milakov and Gimelshein 2018), in a loop whose trip count follows the
longest context of these few: work grows with use, shapes do not.

A query's result has the same bits in every step it is part of (docs/adr/0018).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.attention import EVERYTHING, Reach
from blockdraft_models.decoder.products import row_sums

CONTEXT_CHUNK_TOKENS = 64
VALUE_LANES = 64
# Tiles of so many tokens together go through their context side by side. More would make all of
# them as long as the longest, fewer would make products too small.
GROUP_TOKENS = 16
# Further than any position.
FAR = 2**30


class RaggedBatch(NamedTuple):
    """Where the tokens of a flat batch belong."""

    # First token of each row, then the number of tokens; padding rows are empty.
    row_starts: Int[Array, " rows_and_end"]
    # Length of each row's sequence, the row's own tokens included.
    context_lengths: Int[Array, " rows"]
    # Pages of each row's sequence in order; entries past the end are ignored.
    page_table: Int[Array, "rows max_pages"]
    # Cache slot of each token, `page * page_size + offset`; out of range for padding.
    slots: Int[Array, " tokens"]

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


def cut_into_tiles(
    batch: RaggedBatch, token_count: int, most_tokens: int | None = None
) -> QueryTiles:
    """Cut the rows of a batch into equal tiles, of at most so many tokens each.

    The shapes depend on the batch's shapes only.
    """
    row_count = batch.context_lengths.shape[0]
    tile_tokens = max(1, token_count // row_count)
    if most_tokens is not None:
        tile_tokens = min(tile_tokens, most_tokens)
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
    return QueryTiles(row, token, jnp.where(live, position, -1))


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
    """Return what tiles attended to in the order of the tokens, of the shape and type of `like`."""
    (tile_count, tile_tokens), (_, heads, head_dim) = tiles.token.shape, like.shape
    kv_heads = out.shape[1]
    out = out.reshape(tile_count, kv_heads, tile_tokens, heads // kv_heads, head_dim)
    out = out.transpose(0, 2, 1, 3, 4).reshape(tile_count * tile_tokens, heads, head_dim)
    result = jnp.zeros(like.shape, like.dtype)
    return result.at[tiles.token.reshape(-1)].set(out.astype(like.dtype), mode="drop")


def write_kv(
    cache: Float[Array, "pages page_size *position"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    slots: Int[Array, " tokens"],
) -> Float[Array, "pages page_size *position"]:
    """Return `cache` with the tokens' keys and values at their slots."""
    pages, page_size, *position = cache.shape
    kv = jnp.stack([k, v], axis=2).reshape(k.shape[0], *position).astype(cache.dtype)
    flat = cache.reshape(pages * page_size, *position)
    return flat.at[slots].set(kv, mode="drop").reshape(cache.shape)


def ragged_paged_attention(
    q: Float[Array, "tokens heads head_dim"],
    cache: Float[Array, "pages page_size kv_slots head_dim"],
    batch: RaggedBatch,
    tiles: QueryTiles,
    reach: Reach = EVERYTHING,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend causally from every token to its own sequence, itself included.

    The keys and values of the batch's own tokens must already be in the cache. Scores are scaled
    by `head_dim ** -0.5`; the softmax is in float32.
    """
    _, heads, head_dim = q.shape
    kv_heads = cache.shape[2] // 2
    tile_count, tile_tokens = tiles.token.shape
    queries = in_tiles(q, tiles, kv_heads).astype(jnp.float32) * head_dim**-0.5
    positions = jnp.repeat(tiles.position, heads // kv_heads, axis=1)
    if reach.sinks is not None:
        # Those of a tile's products, whose rows are (query, head of the group).
        sinks = jnp.tile(reach.sinks.reshape(kv_heads, -1), (1, tile_tokens))
        reach = reach._replace(sinks=sinks)
    if queries.shape[2] == 1:
        # A product with a vector would be added up in another order than one of more queries.
        queries = jnp.repeat(queries, 2, axis=2)
        positions = jnp.repeat(positions, 2, axis=1)
        if reach.sinks is not None:
            reach = reach._replace(sinks=jnp.repeat(reach.sinks, 2, axis=1))

    together = min(tile_count, max(1, GROUP_TOKENS // tile_tokens))
    padding = -tile_count % together

    def grouped(array: Array, filler: int) -> Array:
        padded = jnp.pad(
            array, ((0, padding), *((0, 0),) * (array.ndim - 1)), constant_values=filler
        )
        return padded.reshape(-1, together, *array.shape[1:])

    out = jax.lax.map(
        lambda group: _attend_to_context(group[0], group[1], group[2], cache, reach),
        (grouped(queries, 0), grouped(positions, -1), grouped(batch.page_table[tiles.row], 0)),
    ).reshape(tile_count + padding, *queries.shape[1:])

    # Of a query that was repeated, the first copy counts.
    return in_order(out[:tile_count, :, : tile_tokens * heads // kv_heads], tiles, q)


def _attend_to_context(
    queries: Float[Array, "tiles kv_heads queries head_dim"],
    positions: Int[Array, "tiles queries"],
    page_table: Int[Array, "tiles max_pages"],
    cache: Float[Array, "pages page_size kv_slots head_dim"],
    reach: Reach,
) -> Float[Array, "tiles kv_heads queries head_dim"]:
    """Return what the queries of some tiles see, as far as the longest of their contexts goes."""
    _, page_size, kv_slots, head_dim = cache.shape
    kv_heads, tile_count = kv_slots // 2, len(queries)
    chunk_pages = max(1, CONTEXT_CHUNK_TOKENS // page_size)
    chunk_tokens = chunk_pages * page_size
    table = jnp.pad(page_table, ((0, 0), (0, -page_table.shape[1] % chunk_pages)))

    def attend_to_chunk(
        index: Int[Array, ""], state: tuple[Array, Array, Array]
    ) -> tuple[Array, Array, Array]:
        top, total, mixed = state
        pages = jax.lax.dynamic_slice_in_dim(table, index * chunk_pages, chunk_pages, axis=1)
        kv = _read_pages(cache, pages).astype(jnp.float32)
        kv = kv.reshape(tile_count, chunk_tokens, kv_heads, 2, head_dim)
        key = kv[:, :, :, 0]
        # Whole lanes: for other widths the order of summation changes with the number of queries.
        value = jnp.pad(kv[:, :, :, 1], ((0, 0), (0, 0), (0, 0), (0, -head_dim % VALUE_LANES)))
        scores = jnp.einsum("tkqd,tckd->tkqc", queries, key)
        key_position = index * chunk_tokens + jnp.arange(chunk_tokens, dtype=jnp.int32)
        visible = reach.sees(key_position[None, None, :], positions[:, :, None])
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
    width = head_dim + -head_dim % VALUE_LANES
    state = (jnp.full(shape, -jnp.inf), jnp.zeros(shape), jnp.zeros((*shape, width)))
    chunk_count = (jnp.max(positions) + chunk_tokens) // chunk_tokens
    first: int | Int[Array, ""] = 0
    if reach.window:
        # What no window reaches back to is left out; it would add nothing.
        first = reach.first(jnp.min(jnp.where(positions < 0, FAR, positions))) // chunk_tokens
    top, total, mixed = jax.lax.fori_loop(first, chunk_count, attend_to_chunk, state)
    if reach.sinks is not None:
        total = total + jnp.exp(reach.sinks[None] - jnp.where(jnp.isneginf(top), 0.0, top))
    out: Array = mixed[..., :head_dim] / jnp.where(total == 0.0, 1.0, total)[..., None]
    return out


def _read_pages(
    cache: Float[Array, "pages page_size kv_slots head_dim"], pages: Int[Array, "tiles read"]
) -> Float[Array, "tiles read page_size kv_slots head_dim"]:
    if len(pages) > 1:
        return cache[pages]
    # XLA's CPU backend copies slices as they lie, and gathers element by element. Of several tiles
    # there would be too many.
    slices = [jax.lax.dynamic_slice_in_dim(cache, page, 1) for page in pages[0]]
    return jnp.concatenate(slices)[None]
