"""Products and norms on TPU in one order: Pallas kernels in which no row affects another.

Rows come in tiles of a fixed number, and every tile meets the same instructions. XLA's own program
differs with the number of rows (docs/adr/0059). A tile is no higher than a matrix unit, so a step
of few tokens waits for its weights, and not for the rows that pad its tile.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.megablox.gmm import make_group_metadata
from jaxtyping import Array, DTypeLike, Float, Int, Real

TILE_ROWS = 128
"""Rows of a tile."""

_LANES = 128
# Elements of the inner axis that are added up at once.
_INNER = 4096
# Fast memory of a block of the weight, of which there are two; of the rows, and of their totals; of
# a kernel in all.
_WEIGHT_BYTES, _ROW_BYTES, _ALL_BYTES = 4 << 20, 16 << 20, 56 << 20
# Outputs of a block: a narrow weight would else be one block, with more totals than fit.
_MOST_OUTS = 4096

_OVER_LAST_AXES = (((1,), (1,)), ((), ()))


def left_in_place(weights: Array) -> Array:
    """Return weights that stay in HBM; XLA would copy all of them before a kernel reads a part."""
    constrained: Array = pltpu.with_memory_space_constraint(weights, pltpu.HBM)
    return constrained


def block_sizes(width: int, out_width: int, dtype: DTypeLike) -> tuple[int, int]:
    """Return the block of the inner axis, a divisor of `width`, and the block of outputs."""
    sizes = range(_INNER, 0, -_LANES)
    inner = next((size for size in sizes if width % size == 0), width)
    outs = _WEIGHT_BYTES // (inner * jnp.dtype(dtype).itemsize) // _LANES * _LANES
    return inner, min(max(outs, _LANES), _MOST_OUTS, out_width)


def product(
    x: Float[Array, "rows in"],
    weights: Real[Array, "layers out in"],
    layer: Int[Array, ""],
    dtype: DTypeLike,
    *,
    interpret: bool = False,
) -> Float[Array, "rows out"]:
    """Compute `x @ weights[layer].T`, reading nothing of other layers; totals are float32.

    `interpret` is for tests on a CPU.
    """
    row_count, width = x.shape
    out_width = weights.shape[1]
    inner, outs = block_sizes(width, out_width, x.dtype)
    row_bytes = max(width * x.dtype.itemsize, outs * np.dtype(np.float32).itemsize)
    most_tiles = max(1, _ROW_BYTES // (TILE_ROWS * row_bytes))
    tiles = min(math.ceil(row_count / TILE_ROWS), most_tiles)
    rows = tiles * TILE_ROWS
    projected: Array = pl.pallas_call(
        partial(_multiply, tiles=tiles, inner=inner),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(math.ceil(row_count / rows), math.ceil(out_width / outs), width // inner),
            in_specs=[
                pl.BlockSpec((rows, width), lambda row, out, block, layer: (row, 0)),
                pl.BlockSpec(
                    (None, outs, inner), lambda row, out, block, layer: (layer[0], out, block)
                ),
            ],
            out_specs=pl.BlockSpec((rows, outs), lambda row, out, block, layer: (row, out)),
            scratch_shapes=[pltpu.VMEM((rows, outs), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((row_count, out_width), dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=_ALL_BYTES,
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * row_count * width * out_width,
            bytes_accessed=out_width * width * weights.dtype.itemsize + x.size * x.dtype.itemsize,
            transcendentals=0,
        ),
        interpret=interpret,
        name="tile_product",
    )(layer[None], x, left_in_place(weights))
    return projected


def _multiply(
    layer: Any, x: Any, weight: Any, out: Any, totals: Any, *, tiles: int, inner: int
) -> None:
    block = pl.program_id(2)
    matrix = weight[...].astype(x.dtype)
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    columns: Any = slice(None)
    if x.shape[1] > inner:
        columns = pl.ds(pl.multiple_of(block * inner, inner), inner)

    @pl.when(block == 0)
    def begin() -> None:
        totals[...] = jnp.zeros_like(totals)

    def add(tile: Any, carry: None) -> None:
        rows = pl.ds(tile * TILE_ROWS, TILE_ROWS)
        totals[rows, :] += jax.lax.dot_general(
            x[rows, columns],
            matrix,
            _OVER_LAST_AXES,
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    jax.lax.fori_loop(0, tiles, add, None)

    @pl.when(block == pl.num_programs(2) - 1)
    def finish() -> None:
        out[...] = totals[...].astype(out.dtype)


def grouped_product(
    rows: Float[Array, "rows width"],
    weights: Real[Array, "groups ..."],
    sizes: Int[Array, " groups"],
    *,
    outputs_last: bool,
    interpret: bool = False,
) -> Float[Array, "rows outs"]:
    """Multiply the rows of each group, which lie together, by its weight, in float32.

    A weight is [width outs] if outputs are last, else [outs width]. Rows after the last group are
    undefined. A tile is visited once for each group that it has rows of. Like JAX's
    `megablox.gmm`, which takes no int8.
    """
    (row_count, width), out_width = rows.shape, weights.shape[2 if outputs_last else 1]
    rows = jnp.pad(rows, ((0, -row_count % TILE_ROWS), (0, 0)))
    inner, outs = block_sizes(width, out_width, rows.dtype)
    visits, visit_count = make_group_metadata(
        group_sizes=sizes,
        m=len(rows),
        tm=TILE_ROWS,
        start_group=jnp.int32(0),
        num_nonzero_groups=len(weights),
        visit_empty_groups=False,
    )

    def weight_block(out: Any, visit: Any, block: Any, visits: Any) -> tuple[Any, ...]:
        group = visits[1][visit]
        return (group, block, out) if outputs_last else (group, out, block)

    block_shape = (inner, outs) if outputs_last else (outs, inner)
    product: Array = pl.pallas_call(
        partial(_multiply_group, outputs_last=outputs_last),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(math.ceil(out_width / outs), visit_count, width // inner),
            in_specs=[
                pl.BlockSpec(
                    (TILE_ROWS, inner), lambda out, visit, block, visits: (visits[2][visit], block)
                ),
                pl.BlockSpec((None, *block_shape), weight_block),
            ],
            out_specs=pl.BlockSpec(
                (TILE_ROWS, outs), lambda out, visit, block, visits: (visits[2][visit], out)
            ),
            scratch_shapes=[pltpu.VMEM((TILE_ROWS, outs), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((len(rows), out_width), jnp.float32),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=_ALL_BYTES,
        ),
        interpret=interpret,
        name="grouped_product",
    )(visits, rows, weights if interpret else left_in_place(weights))
    return product[:row_count]


def _multiply_group(
    visits: Any, rows: Any, weight: Any, out: Any, totals: Any, *, outputs_last: bool
) -> None:
    visit, block = pl.program_id(1), pl.program_id(2)

    @pl.when(block == 0)
    def begin() -> None:
        totals[...] = jnp.zeros_like(totals)

    totals[...] += jax.lax.dot_general(
        rows[...],
        weight[...].astype(rows.dtype),
        (((1,), (0,)), ((), ())) if outputs_last else _OVER_LAST_AXES,
        precision=jax.lax.Precision.HIGHEST if rows.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )

    @pl.when(block == pl.num_programs(2) - 1)
    def finish() -> None:
        starts, groups, tiles = visits
        row = jax.lax.broadcasted_iota(jnp.int32, out.shape, 0) + tiles[visit] * TILE_ROWS
        group = groups[visit]
        in_group = (row >= starts[group]) & (row < starts[group + 1])
        out[...] = jnp.where(in_group, totals[...], out[...])


def by_tiles(
    function: Callable[[Array, Array], Array],
    x: Float[Array, "rows width"],
    scale: Float[Array, " width"],
    *,
    interpret: bool = False,
) -> Float[Array, "rows width"]:
    """Compute `function(x, scale)`, which treats each row by itself, tile by tile."""
    rows, width = x.shape
    of_tile = pl.BlockSpec((TILE_ROWS, width), lambda tile: (tile, 0))

    def kernel(x: Any, scale: Any, out: Any) -> None:
        out[...] = function(x[...], scale[0])

    changed: Array = pl.pallas_call(
        kernel,
        grid=(math.ceil(rows / TILE_ROWS),),
        in_specs=[of_tile, pl.BlockSpec((1, width), lambda tile: (0, 0))],
        out_specs=of_tile,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=_ALL_BYTES
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * x.size, bytes_accessed=2 * x.size * x.dtype.itemsize, transcendentals=rows
        ),
        interpret=interpret,
        name="tile_norm",
    )(x, scale[None])
    return changed
