"""Sums of rows whose rounding does not depend on how many rows there are.

XLA's CPU backend adds up the elements of a row in an order that changes with the size of the whole
array: there are thresholds at 4,096 and at 262,144 elements. A product with ones it adds up in the
same order for any number of rows from two on, if `_BLOCK` elements are added at once
(docs/adr/0018). So a row is cut into blocks of so many, which are added to one another, and the
elements of what results are summed by the product. Other backends get the plain sum.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_BLOCK = 64
# Wider rows, those of a vocabulary, would take too many additions written out one by one.
_MOST_BLOCKS = 128
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
    rows = x.reshape(-1, x.shape[-1])
    row_count = rows.shape[0]
    # One row would be a product of vectors, which is added up in another order.
    rows = _in_whole_blocks(jnp.pad(rows, ((0, int(row_count == 1)), (0, 0))))
    if rows.shape[1] > _BLOCK * _MOST_BLOCKS:
        rows = _in_whole_blocks(_sums_of_blocks(rows))
    # Block is added to block element by element, one after the other, and then within the block.
    blocks = jnp.split(rows, rows.shape[1] // _BLOCK, axis=1)
    return _sums_of_blocks(functools.reduce(jnp.add, blocks))[:row_count, 0].reshape(x.shape[:-1])


def _in_whole_blocks(x: Float[Array, "rows width"]) -> Float[Array, "rows padded_width"]:
    """Return rows with zeros at their ends: products of fewer terms are added up otherwise."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % _BLOCK)))


def _sums_of_blocks(x: Float[Array, "rows padded_width"]) -> Float[Array, "rows blocks"]:
    """Return the sum of every `_BLOCK` neighbours of each row."""
    # With one column it would be a product with a vector.
    ones = jnp.ones((_BLOCK, 2), x.dtype)
    sums = jnp.dot(x.reshape(-1, _BLOCK), ones, precision=jax.lax.Precision.HIGHEST)
    return sums[:, 0].reshape(x.shape[0], -1)
