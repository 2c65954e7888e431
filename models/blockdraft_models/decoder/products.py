"""Products with a weight and sums of rows, each in one order whatever the number of rows.

A position must get the same bits in a step of any shape. XLA adds up a product in an order that it
chooses by the number of rows, so a CPU has kernels of our own. Where they cannot be had, rows are
multiplied in tiles of a fixed number, in a loop whose body is one and the same for every step
(docs/adr/0057). Training needs no such order: what is differentiated is computed as XLA likes.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Real

from blockdraft_models.decoder.stored import StoredMatrix
from blockdraft_models.kernels import calls
from blockdraft_models.kernels.library import in_kernels

TILE_ROWS = 8
"""Rows of a tile: the fewest that XLA's CPU backend multiplies as fast as one."""

_OVER_LAST_AXES = (((1,), (1,)), ((), ()))
# Numbers that the widest instructions take at once.
_VECTOR = 16


def ordered(
    plain: Callable[..., Array], kernel: Callable[..., Array], tiled: Callable[..., Array]
) -> Callable[..., Array]:
    """Return the function that is `plain` where it is differentiated, and on other than CPUs.

    On a CPU it is `kernel` if the process has kernels, or else `tiled`, which is made of XLA's own
    operations in shapes that do not depend on the number of rows.
    """

    @jax.custom_vjp
    def function(*operands: Array | StoredMatrix) -> Array:
        on_cpu = kernel if in_kernels() else tiled
        result: Array = jax.lax.platform_dependent(*operands, cpu=on_cpu, default=plain)
        return result

    function.defvjp(
        lambda *operands: jax.vjp(plain, *operands),
        lambda pull, cotangent: pull(cotangent),
    )
    return function


Matrix = Real[Array, "out in"] | StoredMatrix
"""A weight as published, of int8, or in a format of GGUF."""


def project(
    x: Float[Array, "rows in"], weight: Matrix, *, dtype: DTypeLike | None = None
) -> Float[Array, "rows out"]:
    """Compute `x @ weight.T`; sums are float32.

    The result has the dtype of the rows when None.
    """
    name = jnp.dtype(dtype or x.dtype).name

    def plain(x: Array, weight: Matrix) -> Array:
        if isinstance(weight, StoredMatrix):
            x, weight = x.astype(jnp.float32), weight.dequantized()
        return _plain_product(x, weight, name)

    def tiled(x: Array, weight: Matrix) -> Array:
        return map_tiles(lambda tile: plain(tile, weight), x)

    def kernel(x: Array, weight: Matrix) -> Array:
        if isinstance(weight, StoredMatrix):
            return calls.product(x, weight.blocks, name, weight.format)
        return calls.product(x, weight, name)

    return ordered(plain, kernel, tiled)(x, weight)


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
    """Apply a function of `TILE_ROWS` rows to as many as there are, tile by tile."""
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

    return ordered(partial(jnp.sum, axis=-1), kernel, _halved_sums)(x)


def _halved_sums(x: Float[Array, "*rows width"]) -> Float[Array, "*rows"]:
    """Add up both halves of each row, again and again; zeros fill it up."""
    # A square of before must not become part of the first addition, by fused instructions.
    x = jax.lax.optimization_barrier(x)
    width = x.shape[-1]
    size = 1 << max(width - 1, 0).bit_length()
    x = jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (0, size - width)))
    while size > 1:
        size //= 2
        x = x[..., :size] + x[..., size:]
    return x[..., 0]


def mean_of_squares(x: Float[Array, "*rows width"]) -> Float[Array, "*rows"]:
    """Return the mean of the squares of each row of a float32 array."""
    return row_sums(jnp.square(x)) / x.shape[-1]


def log_row_sums(x: Float[Array, "rows width"]) -> Float[Array, " rows"]:
    """Return the natural logarithm of each row's sum, the same for any number of rows."""
    sums = row_sums(x)
    # Logarithms of whole vectors and of single numbers are computed in different ways on CPU.
    # The barriers keep XLA from computing only those that are wanted.
    whole = jnp.pad(sums, (0, -sums.shape[0] % _VECTOR), constant_values=1.0)
    logs: Array = jax.lax.optimization_barrier(jnp.log(jax.lax.optimization_barrier(whole)))
    return logs[: sums.shape[0]]
