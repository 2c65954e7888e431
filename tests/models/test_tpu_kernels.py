"""The kernels for TPU, interpreted: float64's numbers, the same for a row beside any others."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_models.kernels import tpu

# Widths in whole lanes and not, in one block and in several; outputs that fill no block.
SHAPES = [(24, 16), (200, 576), (1100, 384), (40, 8192), (4200, 16)]
ROWS = [1, 2, 16, 127, 128, 129, 300]


def operands(shape: tuple[int, int], dtype: str, rows: int) -> tuple[jax.Array, jax.Array]:
    """Rows, and the matrices of three layers, of which only that of layer 1 is finite."""
    rng = np.random.default_rng(rows)
    wide = rng.integers(-127, 128, shape) if dtype == "int8" else rng.standard_normal(shape)
    weights = np.stack([np.full(shape, np.nan), wide, np.full(shape, np.nan)])
    if dtype == "int8":
        weights = np.nan_to_num(weights)
    x = rng.standard_normal((rows, shape[1]))
    return jnp.asarray(x, "float32" if dtype == "float32" else "bfloat16"), jnp.asarray(
        weights, dtype
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape: tuple[int, int], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two tiles of rows at a time.
    row_bytes = shape[1] * (4 if dtype == "float32" else 2)
    monkeypatch.setattr(tpu, "_ROW_BYTES", 2 * tpu.TILE_ROWS * row_bytes)
    x, weights = operands(shape, dtype, max(ROWS))
    product = jax.jit(partial(tpu.product, layer=jnp.int32(1), dtype=jnp.float32, interpret=True))
    together = np.asarray(product(x, weights))
    expected = np.asarray(x, np.float64) @ np.asarray(weights[1], np.float64).T
    np.testing.assert_allclose(together, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    for rows in ROWS:
        np.testing.assert_array_equal(product(x[:rows], weights), together[:rows], str(rows))
    order = np.random.default_rng(0).permutation(max(ROWS))
    np.testing.assert_array_equal(product(x[order], weights), together[order])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("shape", [(16, 24), (40, 8192)], ids=str)
@pytest.mark.parametrize("outputs_last", [False, True])
def test_products_of_groups(shape: tuple[int, int], dtype: str, *, outputs_last: bool) -> None:
    """Groups without rows, groups that end within a tile or fill several; rows after the last."""
    sizes = np.array([0, 3, 130, 0, 260, 1, 0])
    drawn = [operands(shape, dtype, 400 + group) for group in range(len(sizes))]
    x, unused = drawn[0][0], [matrices[0].T for _, matrices in drawn]
    used = [matrices[1].T for _, matrices in drawn]
    weights = jnp.where(jnp.asarray(sizes > 0)[:, None, None], jnp.stack(used), jnp.stack(unused))
    stored = weights if outputs_last else weights.swapaxes(1, 2)
    product = jax.jit(partial(tpu.grouped_product, outputs_last=outputs_last, interpret=True))
    together = np.asarray(product(x, stored, jnp.asarray(sizes, jnp.int32)))
    ends = np.cumsum(sizes)
    for group in np.flatnonzero(sizes):
        rows = slice(ends[group] - sizes[group], ends[group])
        expected = np.asarray(x[rows], np.float64) @ np.asarray(weights[group], np.float64)
        room = 1e-6 * np.abs(expected).max()
        np.testing.assert_allclose(together[rows], expected, rtol=1e-5, atol=room)
        only = jnp.asarray(np.where(np.arange(len(sizes)) == group, sizes, 0), jnp.int32)
        np.testing.assert_array_equal(product(x[rows], stored, only), together[rows])


def test_results_are_rounded_once() -> None:
    x, weights = operands((24, 8192), "bfloat16", 5)
    wide, narrow = (
        jax.jit(partial(tpu.product, dtype=dtype, interpret=True))(x, weights, jnp.int32(1))
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    np.testing.assert_array_equal(wide.astype(jnp.bfloat16), narrow)


@pytest.mark.parametrize("width", [16, 128, 576, 4096])
def test_rows_changed_by_tiles(width: int) -> None:
    rng = np.random.default_rng(width)
    x = jnp.asarray(rng.standard_normal((max(ROWS), width)), jnp.float32)
    scale = jnp.asarray(rng.standard_normal(width), jnp.float32)

    @jax.jit
    def changed(x: jax.Array) -> jax.Array:
        return tpu.by_tiles(
            lambda x, scale: x * x.sum(axis=1, keepdims=True) * scale[None],
            x,
            scale,
            interpret=True,
        )

    together = np.asarray(changed(x))
    wide = np.asarray(x, np.float64)
    expected = wide * wide.sum(axis=1, keepdims=True) * np.asarray(scale, np.float64)
    np.testing.assert_allclose(together, expected, rtol=1e-3, atol=1e-3)
    for rows in ROWS:
        np.testing.assert_array_equal(changed(x[:rows]), together[:rows])
