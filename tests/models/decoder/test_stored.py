"""Matrices in formats of GGUF: what they stand for, and products with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from blockdraft_models.decoder.linear import Embedding, Linear
from blockdraft_models.decoder.products import project
from blockdraft_models.decoder.sharding import EMBED, MLP
from blockdraft_models.decoder.stored import FORMATS, Format, StoredMatrix, row_bytes


def random_matrix(format: Format, rows: int, columns: int) -> StoredMatrix:
    """Return a matrix of random bytes, whose scales are finite and of either sign."""
    rng = np.random.default_rng(rows)
    blocks = rng.integers(0, 256, (rows, columns // 32, row_bytes(format, 32)), dtype=np.uint8)
    for at in range(0, 4 if format == "Q4_1" else 2, 2):
        halves = rng.standard_normal(blocks.shape[:2]).astype("<f2")
        blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    return StoredMatrix(jnp.asarray(blocks.reshape(rows, -1)), format)


def elements(matrix: StoredMatrix) -> np.ndarray:
    """Return what llama.cpp's own package makes of a matrix."""
    return dequantize(np.asarray(matrix.blocks), GGMLQuantizationType[matrix.format])


@pytest.mark.parametrize("format", FORMATS)
def test_elements_are_those_of_gguf(format: Format) -> None:
    matrix = random_matrix(format, 7, 96)
    np.testing.assert_array_equal(jax.jit(StoredMatrix.dequantized)(matrix), elements(matrix))


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("format", FORMATS)
def test_products_have_the_bits_of_those_with_the_elements(
    format: Format, dtype: jnp.dtype
) -> None:
    matrix = random_matrix(format, 101, 160)
    wide = jnp.asarray(elements(matrix))
    compute = jax.jit(lambda x, weight: project(x, weight, dtype=jnp.float32))
    for rows in (1, 2, 3, 4, 8, 21):
        x = np.random.default_rng(rows).standard_normal((rows, 160)).astype(dtype)
        expected = compute(x.astype(np.float32), wide)
        np.testing.assert_array_equal(compute(x, matrix), expected)


def test_rows_are_looked_up() -> None:
    matrix = random_matrix("Q8_0", 9, 64)
    embedding = Embedding(9, 64, dtype=jnp.bfloat16, rngs=None)
    embedding.hold_stored("Q8_0")
    embedding.table[...] = matrix.blocks
    rows = embedding(jnp.array([8, 0, 8]))
    assert rows.dtype == jnp.bfloat16
    np.testing.assert_array_equal(rows, elements(matrix)[[8, 0, 8]].astype(jnp.bfloat16))


def test_gradients_are_those_with_the_elements() -> None:
    matrix = random_matrix("Q4_1", 33, 64)
    linear = Linear(64, 33, (MLP, EMBED), bias=False, dtype=jnp.float32, rngs=None)
    linear.hold_stored("Q4_1")
    linear.weight[...] = matrix.blocks
    gradient = jax.grad(lambda x: linear(x).sum())(jnp.ones((2, 64)))
    expected = np.broadcast_to(elements(matrix).sum(axis=0), (2, 64))
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)
