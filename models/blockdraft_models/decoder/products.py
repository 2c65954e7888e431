"""Products with a weight and sums of rows whose order is written down here.

A position must get the same bits in a step of any shape (docs/adr/0018). XLA adds up a product in
an order that it chooses by the number of rows, so on CPU rows are multiplied in tiles of a fixed
number, in a loop whose body is one and the same for every step (docs/adr/0057). Training needs no
such order: what is differentiated is multiplied as XLA likes.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

TILE_ROWS = 8
"""Rows of a tile: the fewest that XLA's CPU backend multiplies as fast as one."""

_OVER_LAST_AXES = (((1,), (1,)), ((), ()))
# Numbers that the widest instructions take at once.
_VECTOR = 16


def project(
    x: Float[Array, "rows in"], weight: Float[Array, "out in"], *, dtype: DTypeLike | None = None
) -> Float[Array, "rows out"]:
    """Compute `x @ weight.T` with a weight as published, in float32 sums.

    The result has the dtype of the operands when None.
    """
    return _product(x, weight, jnp.dtype(dtype or x.dtype).name)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Array, weight: Array, dtype: str) -> Array:
    plain = partial(_plain_product, dtype=dtype)
    product: Array = jax.lax.platform_dependent(
        x,
        weight,
        cpu=lambda x, weight: map_tiles(lambda tile: plain(tile, weight), x),
        default=plain,
    )
    return product


def _plain_product(x: Array, weight: Array, dtype: str) -> Array:
    return jax.lax.dot_general(x, weight, _OVER_LAST_AXES, preferred_element_type=dtype)


def _forward(x: Array, weight: Array, dtype: str) -> tuple[Array, tuple[Array, Array]]:
    return _plain_product(x, weight, dtype), (x, weight)


def _backward(_: str, residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, weight = residuals
    cotangent = cotangent.astype(x.dtype)
    return cotangent @ weight, cotangent.T @ x


_product.defvjp(_forward, _backward)


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
    """Return the sum of each float32 row: of both halves of it, zeros having filled it up."""
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
    """Return the mean of the squares of each row of a float32 array, rounded like `row_sums`."""
    return row_sums(jnp.square(x)) / x.shape[-1]


def log_row_sums(x: Float[Array, "rows width"]) -> Float[Array, " rows"]:
    """Return the natural logarithm of each row's sum, the same for any number of rows."""
    sums = row_sums(x)
    # Logarithms of whole vectors and of single numbers are computed in different ways on CPU.
    # The barriers keep XLA from computing only those that are wanted.
    whole = jnp.pad(sums, (0, -sums.shape[0] % _VECTOR), constant_values=1.0)
    logs: Array = jax.lax.optimization_barrier(jnp.log(jax.lax.optimization_barrier(whole)))
    return logs[: sums.shape[0]]
