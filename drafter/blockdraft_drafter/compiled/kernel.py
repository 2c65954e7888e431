"""Block attention as one Pallas TPU kernel: it reads the visible part of a context, once.

`attention.attend_in_chunks` defines its result, and is the oracle of its tests.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from blockdraft_drafter.compiled.buffer import CHUNK, BlockKV, CacheView

# Context positions per step of the grid, the first that divides the capacity. A step costs about
# as much as reading this many keys, so shorter ones would be mostly overhead.
_TILES = (4 * CHUNK, 2 * CHUNK, CHUNK)

# Own keys come by whole rows of registers: Mosaic has no product with a single one.
_SUBLANES = 8

_OVER_LAST = (((1,), (1,)), ((), ()))


def attend_in_kernel(
    queries: Float[Array, "blocks kv_heads queries group head_dim"],
    own_kv: BlockKV,
    context: CacheView,
    *,
    window: int | None,
    is_causal: bool,
    interpret: bool = False,
) -> Float[Array, "blocks kv_heads queries group head_dim"]:
    """Attend as `attention.attend_in_chunks` does; the result has the type of `queries`.

    The queries of one KV head, those of all its query heads and all block positions, are the rows
    of one matrix product per tile of the context. Tiles that no query sees are neither read nor
    computed. With `interpret` the kernel runs on a CPU, for tests.
    """
    blocks, kv_heads, count, group, head_dim = queries.shape
    slots, _, capacity, _ = context.layer[0].shape
    own_count = own_kv[0].shape[2]
    rows = count * group
    tile = next(tile for tile in _TILES if capacity % tile == 0)
    first_query = own_count - count
    # Tiles from the first that the block's first query sees to the last that exists.
    last = jnp.maximum(context.lengths - 1, 0) // tile
    first = jnp.zeros_like(last)
    if window is not None:
        first = jnp.minimum(
            jnp.maximum(context.lengths + first_query + 1 - window, 0) // tile, last
        )
    steps = jnp.max(last - first) + 1
    scalars = (
        jnp.clip(context.slots, 0, slots - 1),
        context.lengths,
        first,
        last,
        jnp.reshape(jnp.asarray(context.first_kv_head, jnp.int32), (1,)),
    )

    def of_block(block: Any, head: Any, step: Any, *scalars: Any) -> tuple[Any, ...]:
        return block, head, 0, 0

    def of_context(
        block: Any,
        head: Any,
        step: Any,
        slots: Any,
        lengths: Any,
        first: Any,
        last: Any,
        heads: Any,
    ) -> tuple[Any, ...]:
        # Asking for the tile that is there already costs nothing.
        return slots[block], heads[0] + head, jnp.minimum(first[block] + step, last[block]), 0

    missing = -own_count % _SUBLANES
    own_keys, own_values = (
        jnp.pad(part, ((0, 0), (0, 0), (0, missing), (0, 0))) for part in own_kv
    )

    def spec(length: int, index: Any) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, length, head_dim), index)

    attended: Array = pl.pallas_call(
        partial(
            _kernel,
            tile=tile,
            group=group,
            own_count=own_count,
            window=window,
            is_causal=is_causal,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(blocks, kv_heads, steps),
            in_specs=[
                spec(rows, of_block),
                spec(own_count + missing, of_block),
                spec(own_count + missing, of_block),
                spec(tile, of_context),
                spec(tile, of_context),
            ],
            out_specs=spec(rows, of_block),
            scratch_shapes=[
                pltpu.VMEM((rows, 1), jnp.float32),
                pltpu.VMEM((rows, 1), jnp.float32),
                pltpu.VMEM((rows, head_dim), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((blocks, kv_heads, rows, head_dim), queries.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=interpret,
        name="block_attention",
    )(
        *scalars,
        queries.reshape(blocks, kv_heads, rows, head_dim),
        own_keys,
        own_values,
        *context.layer,
    )
    return attended.reshape(queries.shape)


def _kernel(
    slots: Any,
    lengths: Any,
    first: Any,
    last: Any,
    first_kv_head: Any,
    queries: Any,
    own_keys: Any,
    own_values: Any,
    keys: Any,
    values: Any,
    attended: Any,
    maximum: Any,
    normalizer: Any,
    weighted: Any,
    *,
    tile: int,
    group: int,
    own_count: int,
    window: int | None,
    is_causal: bool,
) -> None:
    """Fold one tile of one block's context into the running softmax of one KV head."""
    block, step = pl.program_id(0), pl.program_id(2)
    length, chunk = lengths[block], first[block] + step
    first_query = own_count - queries.shape[0] // group

    def positions(keys: int) -> tuple[Any, Any]:
        """Return the block position of each row and the number of each key, [rows, keys]."""
        shape = (queries.shape[0], keys)
        row = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        column = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        return first_query + jax.lax.div(row, jnp.int32(group)), column

    def scores(keys: Any) -> Any:
        return jax.lax.dot_general(
            queries[...], keys[...], _OVER_LAST, preferred_element_type=jnp.float32
        )

    def product(weights: Any, values: Any) -> Any:
        return jnp.dot(
            weights.astype(values.dtype), values[...], preferred_element_type=jnp.float32
        )

    # The own keys come first: each query sees its own, so the running maximum is finite.
    @pl.when(step == 0)
    def start() -> None:
        own_scores = scores(own_keys)
        query, key = positions(own_keys.shape[0])
        visible = key <= query if is_causal else key < own_count
        if window is not None:
            visible &= jnp.abs(query - key) < window
        own_scores = jnp.where(visible, own_scores, -jnp.inf)
        maximum[...] = jnp.max(own_scores, axis=1, keepdims=True)
        weights = jnp.exp(own_scores - maximum[...])
        normalizer[...] = jnp.sum(weights, axis=1, keepdims=True)
        weighted[...] = product(weights, own_values)

    @pl.when((chunk <= last[block]) & (length > 0))
    def add() -> None:
        query, key = positions(tile)
        key += chunk * tile
        visible = key < length
        if window is not None:
            visible &= length + query - key < window
        tile_scores = jnp.where(visible, scores(keys), -jnp.inf)
        before = maximum[...]
        maximum[...] = jnp.maximum(before, jnp.max(tile_scores, axis=1, keepdims=True))
        correction = jnp.exp(before - maximum[...])
        weights = jnp.exp(tile_scores - maximum[...])
        normalizer[...] = normalizer[...] * correction + jnp.sum(weights, axis=1, keepdims=True)
        weighted[...] = weighted[...] * correction + product(weights, values)

    @pl.when(step == pl.num_programs(2) - 1)
    def finish() -> None:
        attended[...] = (weighted[...] / normalizer[...]).astype(attended.dtype)
