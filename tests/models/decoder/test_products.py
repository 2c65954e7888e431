"""Products with weights: the same numbers in either form, and the form that each platform gets."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_models.decoder.products import PRODUCT_FORMS, ProductForm, project

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
@pytest.mark.parametrize("form", PRODUCT_FORMS, ids=str)
def test_bfloat16_sums_are_float32(rows: int, form: ProductForm) -> None:
    x, weight = operands(rows, "bfloat16")
    found = jax.jit(partial(project, form=form))(x, weight)
    rounded = expected(x, weight).astype(np.float32).astype(jnp.bfloat16)
    np.testing.assert_allclose(
        np.asarray(found, np.float32), rounded.astype(np.float32), rtol=2**-7
    )


@pytest.mark.parametrize("shape", [(OUT, IN), (192, 576), (256, 512), (576, 1536)])
def test_bfloat16_rows_do_not_depend_on_how_many_there_are(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((128, shape[1])), jnp.bfloat16)
    weight = jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
    together = np.asarray(wide(x, weight))
    for rows in (1, 2, 3, 7, 8, 9, 16, 64, 65, 98):
        np.testing.assert_array_equal(wide(x[:rows], weight), together[:rows], err_msg=str(rows))


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


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the form of the CPU backend")
@pytest.mark.parametrize(
    ("dtype", "form", "shapes"),
    [
        ("float32", "weight/8", {1: f"[1,{OUT}]", 7: f"[{OUT},8]", 8: f"[{OUT},8]"}),
        ("bfloat16", "weight/8", {1: f"[{OUT},8]", 7: f"[{OUT},8]", 8: f"[{OUT},8]"}),
        ("bfloat16", "weight/2", {1: f"[{OUT},2]", 7: f"[{OUT},8]", 9: f"[{OUT},16]"}),
        ("bfloat16", "rows/4", {1: f"[4,{OUT}]", 8: f"[8,{OUT}]", 9: f"[{OUT},16]"}),
        ("float32", "rows/2", {65: f"[65,{OUT}]"}),
        ("bfloat16", "rows/2", {65: f"[72,{OUT}]"}),
    ],
)
def test_on_cpu_few_rows_keep_their_side(dtype: str, form: str, shapes: dict[int, str]) -> None:
    [wanted] = [each for each in PRODUCT_FORMS if str(each) == form]

    def layer(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.nn.silu(project(x, weight, form=wanted))

    for rows, shape in shapes.items():
        compiled = jax.jit(layer).lower(*operands(rows, dtype)).compile().as_text() or ""
        [product] = [line for line in compiled.splitlines() if " dot(" in line]
        assert f"f32{shape}" in product.split(" dot(")[0]
        assert "conditional" not in compiled


def test_other_platforms_get_the_plain_product() -> None:
    traced = jax.jit(project).trace(*operands(8))
    assert "optimization_barrier" in traced.lower(lowering_platforms=("cpu",)).as_text()
    for platform in ("tpu", "cuda"):
        lowered = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "optimization_barrier" not in lowered
        assert "transpose" not in lowered
