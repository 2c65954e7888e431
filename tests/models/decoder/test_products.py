"""Products with weights: the numbers of float64, the same for a row beside any others."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_models.decoder.products import project

pytestmark = pytest.mark.usefixtures("arithmetic")

OUT, IN = 24, 16
wide = jax.jit(partial(project, dtype=jnp.float32))


def operands(rows: int, dtype: str = "float32") -> tuple[jax.Array, jax.Array]:
    """Some rows and a weight."""
    rng = np.random.default_rng(rows)
    x, weight = rng.standard_normal((rows, IN)), rng.standard_normal((OUT, IN))
    return jnp.asarray(x, dtype), jnp.asarray(weight, dtype)


def expected(x: jax.Array, weight: jax.Array) -> Any:
    return np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 64, 65])
def test_products_equal_float64(rows: int) -> None:
    x, weight = operands(rows)
    np.testing.assert_allclose(project(x, weight), expected(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 8, 65])
def test_the_result_is_as_wide_as_asked_for(rows: int) -> None:
    x, weight = operands(rows, "bfloat16")
    assert project(x, weight).dtype == jnp.bfloat16
    found = wide(x, weight)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 65])
def test_bfloat16_sums_are_float32(rows: int) -> None:
    x, weight = operands(rows, "bfloat16")
    found = jax.jit(project)(x, weight)
    rounded = expected(x, weight).astype(np.float32).astype(jnp.bfloat16)
    np.testing.assert_allclose(
        np.asarray(found, np.float32), rounded.astype(np.float32), rtol=2**-7
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(OUT, IN), (33, 70), (192, 576), (256, 512), (576, 1536)])
def test_a_row_is_the_same_beside_any_others_and_in_any_place(
    shape: tuple[int, int], dtype: str
) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((128, shape[1])), dtype)
    weight = jnp.asarray(rng.standard_normal(shape), dtype)
    together = np.asarray(wide(x, weight))
    for rows in (1, 2, 3, 7, 8, 9, 16, 64, 65, 98):
        np.testing.assert_array_equal(wide(x[:rows], weight), together[:rows], err_msg=str(rows))
    order = rng.permutation(128)
    np.testing.assert_array_equal(wide(x[order], weight), together[order])


@pytest.mark.parametrize("rows", [7, 65])
@pytest.mark.parametrize("wider", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bfloat16_gradients_equal_float64(rows: int, wider: bool, dtype: str) -> None:
    x, weight = operands(rows, "bfloat16")
    if not wider:
        x, weight = jnp.tile(x, (1, 3)), jnp.tile(weight, (1, 3))  # either factor may be smaller
    cotangent = jnp.asarray(np.random.default_rng(1).standard_normal((rows, OUT)), dtype)

    @jax.jit
    def gradients(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        _, pull = jax.vjp(lambda x, weight: project(x, weight, dtype=dtype), x, weight)
        of_x, of_weight = pull(cotangent)
        return of_x, of_weight

    wide_x, wide_weight, wide_cotangent = (
        np.asarray(part.astype(jnp.bfloat16), np.float64) for part in (x, weight, cotangent)
    )
    wanted = (wide_cotangent @ wide_weight, wide_cotangent.T @ wide_x)
    for actual, gradient in zip(gradients(x, weight), wanted, strict=True):
        assert actual.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(actual, np.float64), gradient, rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize("rows", [7, 8, 65])
def test_gradients_equal_those_of_the_plain_product(rows: int) -> None:
    def gradients(product: Any) -> Any:
        loss = lambda x, weight: jnp.sum(jnp.sin(product(x, weight)))  # noqa: E731
        return jax.jit(jax.grad(loss, (0, 1)))(*operands(rows))

    plain = gradients(lambda x, weight: x @ weight.T)
    for actual, wanted in zip(gradients(project), plain, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


def test_other_platforms_get_the_plain_product() -> None:
    traced = jax.jit(project).trace(*operands(8))
    ours = re.compile("stablehlo.while|blockdraft_product")
    assert ours.search(traced.lower(lowering_platforms=("cpu",)).as_text())
    for platform in ("tpu", "cuda"):
        assert not ours.search(traced.lower(lowering_platforms=(platform,)).as_text())
