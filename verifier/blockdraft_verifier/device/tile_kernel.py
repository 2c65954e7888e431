"""Paged attention of query tiles as a Pallas TPU kernel, for what the library's cannot compute.

It knows attention sinks, and takes heads of any number and width. A position of its cache is one
flat row, of each head the key and then the value: whole lanes, so that few heads or narrow ones
take no more memory than they have numbers. What it computes is defined by `portable_attention`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from blockdraft_models.decoder.attention import EVERYTHING, Reach
from blockdraft_verifier.device.kernel_attention import CONTEXT_BLOCK_TOKENS, LANES
from blockdraft_verifier.device.portable_attention import (
    FAR,
    QueryTiles,
    RaggedBatch,
    cut_into_tiles,
    in_order,
    in_tiles,
)

# A key and a value together are whole lanes.
_WIDTH = LANES // 2
# Queries of a tile, those of all heads: their sums stay in fast memory.
_TILE_QUERIES = 2048
# Pages that one step reads, each an operand of the kernel.
_MOST_PAGES = 16
# Queries that are multiplied at once, the same in every step: so products have one order.
_ROWS = 64
# Before any key: lower than every score, but finite.
_LOWEST = -1e30

_OVER_LAST = (((1,), (1,)), ((), ()))


def padded(head_dim: int, *, latent: bool = False) -> int:
    """Return the width of a stored head; a latent one is whole lanes by itself."""
    width = LANES if latent else _WIDTH
    return -(-head_dim // width) * width


def tile_tokens(row_tokens: int, heads: int) -> int:
    """Return the tokens of a tile, for so many query heads on a device."""
    return max(1, min(row_tokens, _TILE_QUERIES // heads))


def tiles_of(batch: RaggedBatch, token_count: int, heads: int) -> QueryTiles:
    """Cut a batch into tiles that the kernel can hold, for so many query heads on a device."""
    row_tokens = token_count // batch.context_lengths.shape[0]
    return cut_into_tiles(batch, token_count, tile_tokens(row_tokens, heads))


def ragged_paged_attention(
    q: Float[Array, "tokens heads head_dim"],
    cache: Float[Array, "pages page_size position"],
    batch: RaggedBatch,
    tiles: QueryTiles,
    kv_heads: int,
    reach: Reach = EVERYTHING,
    *,
    latent: bool = False,
    interpret: bool = False,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend as `portable_attention` does; with `interpret` on a CPU, for tests.

    Latent heads have no values beside their keys.
    """
    _, heads, head_dim = q.shape
    page_size, row = cache.shape[1:]
    width, group = row // ((1 if latent else 2) * kv_heads), heads // kv_heads
    # Keys and values of whole lanes are read apart. Else a query takes both: its zeros meet the
    # values, and the second half of the mixture counts.
    apart = width % LANES == 0
    lanes, values = width if apart else 2 * width, width if apart and not latent else 0
    queries = in_tiles(q, tiles, kv_heads)
    live_queries = queries.shape[2]
    count = live_queries + -live_queries % _ROWS
    filler = ((0, 0), (0, 0), (0, count - live_queries), (0, lanes - head_dim))
    queries = jnp.pad(queries, filler)
    # A sink counts as if it were the score of a first key.
    sinks = jnp.full(heads, _LOWEST) if reach.sinks is None else reach.sinks.astype(jnp.float32)
    sinks = jnp.tile(sinks.reshape(kv_heads, group), (1, -(-count // group)))[:, :count, None]

    pages = min(batch.page_table.shape[1], max(1, CONTEXT_BLOCK_TOKENS // page_size), _MOST_PAGES)
    window = jnp.int32(reach.window or FAR)
    if reach.applies is not None:
        window = jnp.where(reach.applies, window, FAR)
    start, origin = (jnp.maximum(place[:, 0], 0) for place in (tiles.position, tiles.first))
    first = jnp.maximum(origin - window + 1, 0) // (pages * page_size)
    last_page = jnp.maximum(jnp.max(reach.last(tiles.last), axis=1), 0) // page_size
    # Of each tile whose queries see each other: where its window reaches back from, and its end.
    joint = jnp.zeros(1, jnp.int32)
    if batch.joint is not None:
        ends = jnp.where(batch.joint[tiles.row], tiles.last[:, 0], -1)
        joint = jnp.stack([origin, ends], axis=1).reshape(-1)
    steps = jnp.max(last_page // pages - first) + 1
    live_tiles = jnp.maximum(jnp.sum(tiles.position[:, 0] >= 0, dtype=jnp.int32), 1)
    scalars = tiles.row, start, first, last_page, window[None], batch.page_table, joint

    def of_tile(tile: Any, step: Any, *scalars: Any) -> tuple[Any, ...]:
        return tile, 0, 0, 0

    def of_page(number: int, tile: Any, step: Any, *scalars: Any) -> tuple[Any, ...]:
        row, _, first, last_page, _, table, _ = scalars
        last = last_page[tile]
        # Asking for the page that is there already costs nothing.
        block = jnp.minimum(first[tile] + step, last // pages)
        return table[row[tile], jnp.minimum(block * pages + number, last)], 0, 0

    of_queries = pl.BlockSpec((None, kv_heads, count, lanes), of_tile)
    out: Array = pl.pallas_call(
        partial(
            _kernel,
            pages=pages,
            group=group,
            scale=head_dim**-0.5,
            values=values,
            canvas=reach.canvas,
            has_joint=batch.joint is not None,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(live_tiles, steps),
            in_specs=[
                of_queries,
                pl.BlockSpec((kv_heads, count, 1), lambda *_: (0, 0, 0)),
                *(
                    pl.BlockSpec((None, page_size, row), partial(of_page, number))
                    for number in range(pages)
                ),
            ],
            out_specs=of_queries,
            scratch_shapes=[
                pltpu.VMEM((kv_heads, count, 1), jnp.float32),
                pltpu.VMEM((kv_heads, count, 1), jnp.float32),
                pltpu.VMEM((kv_heads, count, lanes), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(queries.shape, q.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name="tile_attention",
    )(*scalars, queries, sinks, *[cache] * pages)
    begin = 0 if apart else width
    return in_order(out[:, :, :live_queries, begin : begin + head_dim], tiles, q)


def _kernel(
    row: Any,
    start: Any,
    first: Any,
    last_page: Any,
    window: Any,
    table: Any,
    joint: Any,
    queries: Any,
    sinks: Any,
    *rest: Any,
    pages: int,
    group: int,
    scale: float,
    values: int,
    canvas: int,
    has_joint: bool,
) -> None:
    """Fold some pages of one tile's context into the running softmax of every head.

    The values of a head are so many elements behind its keys; 0 if both are read together.
    """
    *context, out, top, total, mixed = rest
    tile, step = pl.program_id(0), pl.program_id(1)
    kv_heads, count, lanes = queries.shape
    block = first[tile] + step

    @pl.when(step == 0)
    def begin() -> None:
        top[...] = sinks[...]
        total[...] = jnp.ones_like(total)
        mixed[...] = jnp.zeros_like(mixed)

    @pl.when(block <= last_page[tile] // pages)
    def add() -> None:
        size = pages * context[0].shape[0]
        query = jax.lax.broadcasted_iota(jnp.int32, (_ROWS, size), 0)
        key = jax.lax.broadcasted_iota(jnp.int32, (_ROWS, size), 1)
        for head in range(kv_heads):
            place = head * (lanes + values)

            def part(begin: int) -> Any:
                read = [page[:, begin : begin + lanes] for page in context]
                # Not every chip converts 8 bits to 16 at once.
                wide = [part.astype(jnp.float32).astype(queries.dtype) for part in read]
                return jnp.concatenate(wide if read[0].dtype.itemsize == 1 else read, axis=0)

            keys = part(place)
            mixture = part(place + values) if values else keys
            for begin in range(0, count, _ROWS):
                token = jax.lax.div(begin + query, jnp.int32(group))
                position = start[tile] + token
                if canvas > 1:
                    position += canvas - 1 - jax.lax.rem(position, jnp.int32(canvas))
                far = near = position - block * size - key
                if has_joint:
                    end, together = joint[2 * tile + 1], joint[2 * tile + 1] >= 0
                    near = jnp.where(together, end - block * size - key, near)
                    far = jnp.where(together, joint[2 * tile] - block * size - key, far)
                visible = (near >= 0) & (far < window[0])
                rows = head, slice(begin, begin + _ROWS)
                scores = jax.lax.dot_general(
                    queries[rows], keys, _OVER_LAST, preferred_element_type=jnp.float32
                )
                scores = jnp.where(visible, scores * scale, -jnp.inf)
                before = top[rows]
                highest = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
                weights, shrink = jnp.exp(scores - highest), jnp.exp(before - highest)
                top[rows] = highest
                total[rows] = total[rows] * shrink + jnp.sum(weights, axis=1, keepdims=True)
                mixed[rows] = mixed[rows] * shrink + jnp.dot(
                    weights.astype(mixture.dtype), mixture, preferred_element_type=jnp.float32
                )

    @pl.when(step == pl.num_programs(1) - 1)
    def finish() -> None:
        out[...] = (mixed[...] / total[...]).astype(out.dtype)
