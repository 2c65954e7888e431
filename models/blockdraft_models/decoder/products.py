"""Products with a weight and sums of rows, fast and batch-invariant on each backend.

Every product with a weight is `project`, every sum of a row that results depend on `row_sums`. The
special cases are for XLA's CPU backend, which rounds a row otherwise beside another number of rows
(docs/adr/0009, 0014, 0018, 0043). The backend is known when lowering, so that compiling for TPU on
a host without one is right too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, DTypeLike, Float

# The row counts for which XLA's CPU backend is faster with the weight as left operand, in float32:
# at 2 to 16 rows it takes half the time, at 128 as long (docs/adr/0009).
_FEW_ROWS = range(2, 65)
# Up to here a `ProductForm` says how to multiply.
_MOST_ROWS_OF_A_FORM = 8
_OVER_LAST_AXES = (((1,), (1,)), ((), ()))

# The backend adds up the elements of a row in an order that changes with the size of the whole
# array: there are thresholds at 4,096 and at 262,144 elements. A product with ones it adds up in
# the same order for any number of rows from two on.
# Products of fewer terms are added up in other orders, so that narrow rows are padded with zeros.
_LEAST_TERMS = 64
# Wider rows, those of a vocabulary, are cut into blocks, whose sums are summed again.
_MOST_TERMS = 1024
# Numbers that the widest instructions take at once.
_VECTOR = 16


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class ProductForm:
    """How a CPU multiplies up to 8 rows of bfloat16 with a weight."""

    left: Literal["rows", "weight"]  # the left operand; the other one is on the right
    multiple: int  # rows are padded to a multiple of so many

    def __str__(self) -> str:
        """Return it in a word, such as "weight/8"."""
        return f"{self.left}/{self.multiple}"


SAFEST_FORM = ProductForm("weight", 8)
"""It was batch-invariant on every processor and at every width that were tried."""
PRODUCT_FORMS = (
    SAFEST_FORM,
    *(ProductForm("weight", multiple) for multiple in (4, 2)),
    *(ProductForm("rows", multiple) for multiple in (8, 4, 2)),
)
"""The forms that `product_forms` chooses from."""


def project(
    x: Float[Array, "rows in"],
    weight: Float[Array, "out in"],
    *,
    dtype: DTypeLike | None = None,
    form: ProductForm = SAFEST_FORM,
) -> Float[Array, "rows out"]:
    """Compute `x @ weight.T` with a weight as published; `form` is that of few rows on CPU.

    The result has the dtype of the operands when None. Sums of bfloat16 are float32.
    """
    if x.dtype == jnp.bfloat16:
        return _project_bfloat16(x, weight, jnp.dtype(dtype or x.dtype).name, form)
    if x.shape[0] not in _FEW_ROWS:
        return _rows_first(x, weight, dtype)
    return _by_platform(
        partial(_weight_first, dtype=dtype), partial(_rows_first, dtype=dtype), x, weight
    )


def _by_platform(
    cpu: Callable[..., Array], default: Callable[..., Array], *operands: Array
) -> Array:
    product: Array = jax.lax.platform_dependent(*operands, cpu=cpu, default=default)
    return product


def _rows_first(x: Array, weight: Array, dtype: DTypeLike | None) -> Array:
    return jax.lax.dot_general(x, weight, _OVER_LAST_AXES, preferred_element_type=dtype)


def _weight_first(x: Array, weight: Array, dtype: DTypeLike | None) -> Array:
    rows = x.shape[0]
    # More than four rows are fastest by the eight: 7 take a quarter longer than 8.
    padded = jnp.pad(x, ((0, -rows % 8 if rows > 4 else 0), (0, 0)))
    columns = jax.lax.dot_general(weight, padded, _OVER_LAST_AXES, preferred_element_type=dtype)
    # Without the barrier XLA folds the transpose into the product, which turns it around again.
    barred: Array = jax.lax.optimization_barrier(columns)
    return barred.T[:rows]


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _project_bfloat16(x: Array, weight: Array, dtype: str, form: ProductForm) -> Array:
    on_cpu = partial(_wide_project, dtype=dtype, form=form)
    return _by_platform(on_cpu, partial(_rows_first, dtype=dtype), x, weight)


def _forward(
    x: Array, weight: Array, dtype: str, form: ProductForm
) -> tuple[Array, tuple[Array, Array]]:
    return _project_bfloat16(x, weight, dtype, form), (x, weight)


def _backward(
    dtype: str, form: ProductForm, residuals: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    x, weight = residuals
    cotangent = cotangent.astype(x.dtype)
    of_x = _by_platform(_wide_product, jnp.matmul, cotangent, weight)
    of_weight = _by_platform(_outer_products, lambda g, x: jnp.matmul(g.T, x), cotangent, x)
    return of_x, of_weight


_project_bfloat16.defvjp(_forward, _backward)


def _wide_project(x: Array, weight: Array, dtype: str, form: ProductForm) -> Array:
    rows = x.shape[0]
    if rows > _MOST_ROWS_OF_A_FORM:
        # The rows that are left over of many would also round otherwise at some widths.
        form = SAFEST_FORM if rows in _FEW_ROWS else ProductForm("rows", 8)
    padded = jnp.pad(x, ((0, -rows % form.multiple), (0, 0)))
    if form.left == "rows":
        return _wide(padded, weight, _OVER_LAST_AXES)[:rows].astype(dtype)
    return _wide(weight, padded, _OVER_LAST_AXES).T[:rows].astype(dtype)


def _outer_products(a: Array, b: Array) -> Array:
    """Return `a.T @ b`; the smaller of both is transposed."""
    if a.shape[1] > b.shape[1]:
        return _wide_product(_transposed(b), a).T
    return _wide_product(_transposed(a), b)


def _wide_product(a: Array, b: Array) -> Array:
    return _wide(a, b, (((1,), (0,)), ((), ()))).astype(a.dtype)


def _wide(a: Array, b: Array, dimensions: Any) -> Array:
    """Return a product of bfloat16 in float32, the one form that uses matrix instructions."""
    # Without the barriers XLA folds the rounding before or behind it into the product, which then
    # is one of float32 with converted operands.
    a, b = jax.lax.optimization_barrier((a, b))
    product = jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)
    barred: Array = jax.lax.optimization_barrier(product)
    return barred


def _transposed(matrix: Array) -> Array:
    """Return the transpose, written out: a product does not take a left operand by its columns."""
    transposed: Array = with_layout_constraint(matrix.T, Layout((0, 1)))
    return transposed


def row_sums(x: Float[Array, "*rows width"]) -> Float[Array, "*rows"]:
    """Return the sum of each float32 row, on CPU the same bits beside any number of others."""
    sums: Array = jax.lax.platform_dependent(x, cpu=_by_products, default=_plain)
    return sums


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
