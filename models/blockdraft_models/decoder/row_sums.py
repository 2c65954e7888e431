"""Sums of rows whose rounding does not depend on how many rows there are.

XLA's CPU backend adds up the elements of a row in an order that changes with the size of the whole
array: there are thresholds at 4,096 and at 262,144 elements. A product with ones it adds up in the
same order for any number of rows from two on, if no more than `_BLOCK` elements are added at once
(docs/adr/0018). So a row is cut into blocks, and the sums of the blocks are summed again. Other
backends get the plain sum.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_BLOCK = 64


def row_sums(x: Float[Array, "*rows width"]) -> Float[Array, "*rows"]:
    """Return the sum of each row of a float32 array.

    On CPU the same row gives the same bits beside any number of others.
    """
    sums: Array = jax.lax.platform_dependent(x, cpu=_by_products, default=_plain)
    return sums


def mean_of_squares(x: Float[Array, "*rows width"]) -> Float[Array, "*rows"]:
    """Return the mean of the squares of each row of a float32 array, rounded like `row_sums`."""
    return row_sums(jnp.square(x)) / x.shape[-1]


def _plain(x: Array) -> Array:
    return jnp.sum(x, axis=-1)


def _by_products(x: Array) -> Array:
    sums = x.reshape(-1, x.shape[-1])
    row_count = sums.shape[0]
    # One row would be a product of vectors, which is added up in another order.
    sums = jnp.pad(sums, ((0, int(row_count == 1)), (0, 0)))
    while sums.shape[1] > 1:
        sums = _sums_of_blocks(sums)
    return sums[:row_count, 0].reshape(x.shape[:-1])


def _sums_of_blocks(
    x: Float[Array, "rows width"],
) -> Float[Array, "rows blocks"]:
    """Return the sum of every `_BLOCK` neighbours of each row; the last ones may be fewer."""
    rows, width = x.shape
    block = min(width, _BLOCK)
    blocks = jnp.pad(x, ((0, 0), (0, -width % block))).reshape(-1, block)
    # With one column it would be a product with a vector.
    ones = jnp.ones((block, 2), x.dtype)
    sums = jnp.dot(blocks, ones, precision=jax.lax.Precision.HIGHEST)
    return sums[:, 0].reshape(rows, -1)
