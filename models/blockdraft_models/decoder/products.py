"""Products with a weight and sums of rows, each in one order whatever the number of rows.

A position must get the same bits in a step of any shape. XLA adds up a product in an order that it
chooses by the number of rows, so CPU and TPU have kernels of our own. Where a CPU's cannot be had,
rows are multiplied in tiles of a fixed number, in a loop whose body is one and the same for every
step (docs/adr/0057, docs/adr/0059). Training needs no fixed order: XLA chooses that of functions
which are differentiated.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, DTypeLike, Float, Real

from blockdraft_models.decoder.sharding import MODEL_AXIS, Division, sum_over_devices
from blockdraft_models.decoder.stored import LayerMatrix, ScaledMatrix, StoredMatrix
from blockdraft_models.kernels import calls, tpu
from blockdraft_models.kernels.library import in_kernels
from blockdraft_models.platform import by_platform

TILE_ROWS = 8
"""Rows of a tile: the fewest that XLA's CPU backend multiplies as fast as one."""

_OVER_LAST_AXES = (((1,), (1,)), ((), ()))
# Bits of a sum that are added up at once: as many times 2**18 as an int32 holds.
_PLACE_BITS = 12
# Numbers that the widest instructions take at once.
VECTOR = 16


def ordered(
    plain: Callable[..., Array],
    kernel: Callable[..., Array],
    tiled: Callable[..., Array],
    on_tpu: Callable[..., Array],
) -> Callable[..., Array]:
    """Return the function that is `plain` where it is differentiated, and on a GPU.

    On a CPU it is `kernel` if the process has kernels, or else `tiled`, which is made of XLA's own
    operations in shapes that do not depend on the number of rows.
    """

    @jax.custom_vjp
    def function(*operands: Array | StoredMatrix | LayerMatrix) -> Array:
        on_cpu = kernel if in_kernels() else tiled
        result: Array = by_platform(*operands, cpu=on_cpu, tpu=on_tpu, default=plain)
        return result

    function.defvjp(
        lambda *operands: jax.vjp(plain, *operands),
        lambda pull, cotangent: pull(cotangent),
    )
    return function


Matrix = Real[Array, "out in"] | StoredMatrix | LayerMatrix
"""A weight as published, of int8, in a format of GGUF, or one of a stack."""


def project(
    x: Float[Array, "rows in"],
    weight: Matrix | ScaledMatrix,
    *,
    dtype: DTypeLike | None = None,
    division: Division | None = None,
) -> Float[Array, "rows out"]:
    """Compute `x @ weight.T`; sums are float32.

    A `dtype` of None is that of the rows. Without a division, XLA chooses the order on TPU.
    """
    if isinstance(weight, ScaledMatrix):
        y = project(x, weight.values, dtype=jnp.float32, division=division)
        scaled: Array = (y * weight.scale[None, :]).astype(dtype or x.dtype)
        return scaled
    name = jnp.dtype(dtype or x.dtype).name
    if division is None:
        return _product(x, weight, name, in_tiles=False)

    def on_this_device(x: Array, weight: Matrix) -> Array:
        if division.axis != 1:
            return _product(x, weight, name)
        return sum_over_devices(_product(x, weight, "float32"), jnp.dtype(name))

    whole, columns = PartitionSpec(), PartitionSpec(None, MODEL_AXIS)
    is_stack = isinstance(weight, LayerMatrix)
    of_weight = LayerMatrix(division.spec(leading=1), whole) if is_stack else division.spec()
    projected: Array = jax.shard_map(
        on_this_device,
        mesh=division.mesh,
        in_specs=(columns if division.axis == 1 else whole, of_weight),
        out_specs=columns if division.axis == 0 else whole,
        check_vma=False,
    )(x, weight)
    return projected


def _product(x: Array, weight: Matrix, dtype: str, *, in_tiles: bool = True) -> Array:
    def plain(x: Array, weight: Matrix) -> Array:
        if isinstance(weight, StoredMatrix):
            x, weight = x.astype(jnp.float32), weight.dequantized()
        return _plain_product(x, _alone(weight), dtype)

    def tiled(x: Array, weight: Matrix) -> Array:
        return map_tiles(lambda tile: plain(tile, weight), x)

    def kernel(x: Array, weight: Matrix) -> Array:
        if isinstance(weight, StoredMatrix):
            return calls.product(x, weight.blocks, dtype, weight.format)
        return calls.product(x, _alone(weight), dtype)

    def on_tpu(x: Array, weight: Matrix) -> Array:
        if not isinstance(weight, LayerMatrix):
            weight = LayerMatrix(weight[None], jnp.int32(0))
        return tpu.product(x, weight.stack, weight.layer, dtype)

    return ordered(plain, kernel, tiled, on_tpu if in_tiles else plain)(x, weight)


def _alone(weight: Array | LayerMatrix) -> Array:
    return weight.alone() if isinstance(weight, LayerMatrix) else weight


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _plain_product(x: Array, weight: Array, dtype: str) -> Array:
    # Every int8 is exact in every other type. On TPU it is widened on its way into the product.
    wide = weight.astype(x.dtype)
    # Else a TPU would multiply float32 in one pass of bfloat16.
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jax.lax.dot_general(
        x, wide, _OVER_LAST_AXES, precision=precision, preferred_element_type=dtype
    )


def _backward(_: str, operands: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, weight = operands
    # Else XLA would add up products of two types in bfloat16.
    cotangent = cotangent.astype(x.dtype)
    return cotangent @ weight, cotangent.T @ x


_plain_product.defvjp(
    lambda x, weight, dtype: (_plain_product(x, weight, dtype), (x, weight)), _backward
)


def map_tiles(
    function: Callable[[Float[Array, "tile in"]], Float[Array, "tile out"]],
    x: Float[Array, "rows in"],
) -> Float[Array, "rows out"]:
    """Apply a function of `TILE_ROWS` rows to any number of rows, tile by tile."""
    row_count = x.shape[0]
    x = jnp.pad(x, ((0, -row_count % TILE_ROWS), (0, 0)))
    result = jax.eval_shape(function, jax.ShapeDtypeStruct((TILE_ROWS, x.shape[1]), x.dtype))

    def add_tile(index: Array, results: Array) -> Array:
        first = index * TILE_ROWS
        tile = jax.lax.dynamic_slice_in_dim(x, first, TILE_ROWS)
        return jax.lax.dynamic_update_slice_in_dim(results, function(tile), first, 0)

    # Behind the barrier XLA does not know the number: a loop of one tile would be taken apart.
    count = jax.lax.optimization_barrier(jnp.int32(x.shape[0] // TILE_ROWS))
    results: Array = jnp.zeros((x.shape[0], result.shape[1]), result.dtype)
    results = jax.lax.fori_loop(jnp.int32(0), count, add_tile, results)
    return results[:row_count]


def row_sums(x: Float[Array, "*rows width"]) -> Float[Array, "*rows"]:
    """Return the sum of each float32 row."""

    def kernel(x: Array) -> Array:
        sums = calls.row_sums(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))
        return sums.reshape(x.shape[:-1])

    return ordered(partial(jnp.sum, axis=-1), kernel, _halved_sums, _halved_sums)(x)


def _halved_sums(x: Float[Array, "*rows width"]) -> Float[Array, "*rows"]:
    """Add the halves of each zero-padded row, again and again, until one number is left."""
    # A square computed before must not be fused into the first addition.
    x = jax.lax.optimization_barrier(x)
    width = x.shape[-1]
    size = 1 << max(width - 1, 0).bit_length()
    x = jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (0, size - width)))
    while size > 1:
        size //= 2
        x = x[..., :size] + x[..., size:]
    return x[..., 0]


def share_sums(x: Float[Array, "rows width"]) -> Float[Array, " rows"]:
    """Return the sum of each float32 row of at most 2**18 numbers from 0 to 1, as of a softmax."""
    of_cpu = partial(jnp.sum, axis=-1), calls.row_sums, _halved_sums
    return ordered(*of_cpu, sums_in_whole_numbers)(x)


def sums_in_whole_numbers(x: Float[Array, "rows width"]) -> Float[Array, " rows"]:
    """Return `share_sums` as sums of multiples of 2**-48, the same in any order of adding."""
    total = jnp.zeros(x.shape[:-1], jnp.float32)
    for place in range(1, 5):
        x = x * 2.0**_PLACE_BITS
        whole = jnp.floor(x)
        x = x - whole
        sums = whole.astype(jnp.int32).sum(axis=-1).astype(jnp.float32)
        total = total + sums * 2.0 ** (-_PLACE_BITS * place)
    return total


def log_share_sums(x: Float[Array, "rows width"]) -> Float[Array, " rows"]:
    """Return the natural logarithms of `share_sums`, the same for any number of rows."""
    sums = share_sums(x)
    # Logarithms of whole vectors and of single numbers are computed in different ways on CPU.
    # The barriers keep XLA from computing only the rows that are returned.
    whole = jnp.pad(sums, (0, -sums.shape[0] % VECTOR), constant_values=1.0)
    logs: Array = jax.lax.optimization_barrier(jnp.log(jax.lax.optimization_barrier(whole)))
    return logs[: sums.shape[0]]
