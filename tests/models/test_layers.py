"""Products with weights: the same numbers in either form, and the form that each platform gets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_models.layers import project

OUT, IN = 24, 16


def operands(rows: int, dtype: str = "float32") -> tuple[jax.Array, jax.Array]:
    """Some rows and a weight."""
    rng = np.random.default_rng(rows)
    x, weight = rng.standard_normal((rows, IN)), rng.standard_normal((OUT, IN))
    return jnp.asarray(x, dtype), jnp.asarray(weight, dtype)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 64, 65])
def test_products_equal_float64(rows: int) -> None:
    x, weight = operands(rows)
    expected = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    np.testing.assert_allclose(jax.jit(project)(x, weight), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(project(x, weight), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 8, 65])
def test_the_result_is_as_wide_as_asked_for(rows: int) -> None:
    x, weight = operands(rows, "bfloat16")
    assert project(x, weight).dtype == jnp.bfloat16
    wide = project(x, weight, dtype=jnp.float32)
    assert wide.dtype == jnp.float32
    expected = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    np.testing.assert_allclose(wide, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [7, 8, 65])
def test_gradients_equal_those_of_the_plain_product(rows: int) -> None:
    x, weight = operands(rows)

    def loss(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(project(x, weight)))

    def plain(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(x @ weight.T))

    actual, expected = (jax.jit(jax.grad(f, (0, 1)))(x, weight) for f in (loss, plain))
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the form of the CPU backend")
def test_on_cpu_the_weight_stays_the_left_operand() -> None:
    def layer(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.nn.silu(project(x, weight))

    shapes = {1: f"[1,{OUT}]", 7: f"[{OUT},8]", 8: f"[{OUT},8]", 65: f"[65,{OUT}]"}
    for rows, shape in shapes.items():
        compiled = jax.jit(layer).lower(*operands(rows)).compile().as_text() or ""
        products = [line for line in compiled.splitlines() if " dot(" in line]
        assert len(products) == 1
        assert f"f32{shape}" in products[0].split(" dot(")[0]
        assert "conditional" not in compiled


def test_other_platforms_get_the_plain_product() -> None:
    traced = jax.jit(project).trace(*operands(8))
    assert "optimization_barrier" in traced.lower(lowering_platforms=("cpu",)).as_text()
    for platform in ("tpu", "cuda"):
        lowered = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "optimization_barrier" not in lowered
        assert "transpose" not in lowered
