"""Sums of rows whose rounding does not depend on how many rows there are.

XLA's CPU backend adds up the elements of a row in an order that changes with the size of the whole
array: there are thresholds at 4,096 and at 262,144 elements. A product with ones it adds up in the
same order for any number of rows from two on (docs/adr/0018). Other backends get the plain sum.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Products of fewer terms are added up in other orders, so that narrow rows are padded with zeros.
_LEAST_TERMS = 64
# Wider rows, those of a vocabulary, are cut into blocks, whose sums are summed again.
_MOST_TERMS = 1024
# Numbers that the widest instructions take at once.
_VECTOR = 16


def row_sums(x: Float[Array, "*rows width"]) -> Float[Array, "*rows"]:
    """Return the sum of each row of a float32 array.

    On CPU the same row gives the same bits beside any number of others.
    """
    sums: Array = jax.lax.platform_dependent(x, cpu=_by_products, default=_plain)
    return sums


def mean_of_squares(x: Float[Array, "*rows width"]) -> Float[Array, "*rows"]:
    """Return the mean of the squares of each row of a float32 array, rounded like `row_sums`."""
    return row_sums(jnp.square(x)) / x.shape[-1]


def log_row_sums(x: Float[Array, "rows width"]) -> Float[Array, " rows"]:
    """Return the natural logarithm of each row's sum, rounded alike for any number of rows."""
    sums = row_sums(x)
    # Logarithms of whole vectors and of single numbers are computed in different ways on CPU.
    # The barriers keep XLA from computing only those that are wanted.
    whole = jnp.pad(sums, (0, -sums.shape[0] % _VECTOR), constant_values=1.0)
    logs: Array = jax.lax.optimization_barrier(jnp.log(jax.lax.optimization_barrier(whole)))
    return logs[: sums.shape[0]]


def _plain(x: Array) -> Array:
    return jnp.sum(x, axis=-1)


def _by_products(x: Array) -> Array:
    row_count = math.prod(x.shape[:-1])
    rows = x.reshape(row_count, x.shape[-1])
    # One row would be a product of vectors, which is added up in another order.
    sums = jnp.pad(rows, ((0, int(row_count == 1)), (0, 0)))
    sums = _sums_of_blocks(sums)
    while sums.shape[1] > 1:
        sums = _sums_of_blocks(sums)
    return sums[:row_count, 0].reshape(x.shape[:-1])


def _sums_of_blocks(x: Float[Array, "rows width"]) -> Float[Array, "rows blocks"]:
    """Return the sum of every so many neighbours of each row; the last ones may be fewer."""
    rows, width = x.shape
    block = min(max(width, _LEAST_TERMS), _MOST_TERMS)
    count = -(-width // block)
    blocks = jnp.pad(x, ((0, 0), (0, -width % block))).reshape(rows * count, block)
    # With one column it would be a product with a vector.
    ones = jnp.ones((block, 2), x.dtype)
    sums = jnp.dot(blocks, ones, precision=jax.lax.Precision.HIGHEST)
    return sums[:, 0].reshape(rows, count)
