"""Products with weights: the same numbers in either form, and the form that each platform gets."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_models.decoder.products import PRODUCT_FORMS, ProductForm, project

OUT, IN = 24, 16
DTYPES = ("float32", "bfloat16")


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


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 65])
@pytest.mark.parametrize("form", PRODUCT_FORMS, ids=str)
def test_bfloat16_sums_are_float32(rows: int, form: ProductForm) -> None:
    x, weight = operands(rows, "bfloat16")
    expected = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    rounded = expected.astype(np.float32).astype(jnp.bfloat16)
    np.testing.assert_allclose(
        np.asarray(jax.jit(partial(project, form=form))(x, weight), np.float32),
        rounded.astype(np.float32),
        rtol=2**-7,
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 16, 64, 65, 98, 128])
@pytest.mark.parametrize("shape", [(OUT, IN), (192, 576), (256, 512), (576, 1536)])
def test_bfloat16_rows_do_not_depend_on_how_many_there_are(
    rows: int, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(rows)
    x = jnp.asarray(rng.standard_normal((128, shape[1])), jnp.bfloat16)
    weight = jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
    wide = jax.jit(lambda x, weight: project(x, weight, dtype=jnp.float32))
    np.testing.assert_array_equal(wide(x[:rows], weight), wide(x, weight)[:rows])


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
    expected = (wide_cotangent @ wide_weight, wide_cotangent.T @ wide_x)
    for actual, wanted in zip(gradients(x, weight), expected, strict=True):
        assert actual.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(actual, np.float64), wanted, rtol=2**-7, atol=1e-2)


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
@pytest.mark.parametrize(
    ("dtype", "form", "shapes"),
    [
        *((dtype, "weight/8", {7: f"[{OUT},8]", 8: f"[{OUT},8]"}) for dtype in DTYPES),
        ("float32", "weight/8", {1: f"[1,{OUT}]"}),
        ("bfloat16", "weight/8", {1: f"[{OUT},8]"}),
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
