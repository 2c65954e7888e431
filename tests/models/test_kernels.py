"""The kernels: their order of adding up, step by step in NumPy, and how a process comes by them."""

import hashlib
import itertools
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_models.kernels import calls, library

LANES = 16


@pytest.fixture
def kernels() -> None:
    if not library.in_kernels():
        pytest.skip("no C++ compiler here")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the source, of which nothing was made."""
    copy = tmp_path / library.SOURCE.name
    shutil.copy(library.SOURCE, copy)
    monkeypatch.setattr(library, "SOURCE", copy)
    return copy


def added_up(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the sums over the last axis of products, each fused with its addition, in lanes."""
    width = x.shape[-1]
    padding = [(0, 0)] * (x.ndim - 1) + [(0, -width % LANES)]
    x, y = (np.pad(part, padding).astype(np.float64) for part in (x, y))
    lanes = np.zeros((*x.shape[:-1], LANES), np.float32)
    for k in range(0, x.shape[-1], LANES):
        # A product of two float32 is exact in float64.
        lanes = (x[..., k : k + LANES] * y[..., k : k + LANES] + lanes).astype(np.float32)
    half = LANES // 2
    while half:
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
        half //= 2
    return lanes[..., 0]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("outputs", "width"), [(7, 5), (24, 16), (50, 70), (97, 576)])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 9, 20])
def test_a_product_has_the_order_that_is_written_down(
    rows: int, outputs: int, width: int, stored: str
) -> None:
    """So its bits are the same on every processor."""
    rng = np.random.default_rng(width)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    numbers = jnp.asarray(rng.standard_normal((outputs, width)) * 20, jnp.float32)
    weight = numbers.astype(stored)
    found = jax.jit(lambda x, weight: calls.product(x, weight, "float32"))(x, weight)
    wide = np.asarray(weight.astype(jnp.float32))
    np.testing.assert_array_equal(found, added_up(x[:, None], wide[None]))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("width", [1, 15, 16, 17, 576, 49153])
def test_sums_have_the_order_that_is_written_down(width: int) -> None:
    x = np.random.default_rng(width).standard_normal((9, width)).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(calls.row_sums)(x), added_up(x, np.ones_like(x)))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("width", [3, 64, 576])
def test_norms_equal_float64(width: int, offset: float) -> None:
    rng = np.random.default_rng(width)
    x = rng.standard_normal((5, width)).astype(np.float32)
    scale = rng.standard_normal(width).astype(np.float32)
    found = jax.jit(lambda x, scale: calls.normalize(x, scale, 1e-5, offset))(x, scale)
    wide = x.astype(np.float64)
    root = np.sqrt(np.mean(wide**2, -1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, wide / root * (offset + scale), rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("kernels")
def test_attention_has_the_same_bits_on_every_processor() -> None:
    """They are on record: of rows of several lengths, with windows and sinks."""
    rng = np.random.default_rng(0)
    digest = hashlib.sha256()
    for head_dim, window in itertools.product((8, 20, 64), (0, 30)):
        q, cache, sinks = (
            rng.standard_normal(shape).astype(np.float32)
            for shape in ((32, 6, head_dim), (20, 16, 4, head_dim), (6,))
        )
        pages = np.stack([rng.permutation(20) for _ in range(3)]).astype(np.int32)
        out = jax.jit(calls.attention, static_argnums=8)(
            *(q, cache, np.array([0, 1, 9, 30], np.int32), np.array([200, 8, 90], np.int32)),
            *(pages, np.array([window], np.int32), sinks, np.zeros(0, np.int32), 1),
        )
        digest.update(np.asarray(out).tobytes())
    assert digest.hexdigest()[:16] == "fb9e65840ce87ac6"


@pytest.mark.parametrize(
    ("command", "reason"),
    [("not-a-compiler", "no C++ compiler among not-a-compiler"), ("false", "false fails")],
)
def test_without_a_compiler_it_says_so_once(
    command: str,
    reason: str,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CXX", command)
    assert not library._loaded.__wrapped__()
    [message] = caplog.messages
    assert f"as exactly but slower: {reason}" in message
    assert not list(source.parent.rglob("*.so"))


def test_what_an_image_brings_along_needs_no_compiler(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "not-a-compiler")
    facts = {"flags": "avx2 fma bmi2 f16c"}
    monkeypatch.setattr(library, "processor_facts", lambda: facts)
    folder = source.parent / "__pycache__"
    folder.mkdir()
    older, newer = (library._path(folder, f"x86-64-v{number}") for number in (3, 4))
    for path in (older, newer):
        path.touch()
    assert library._built() == older
    facts["flags"] += " avx512f avx512bw avx512dq avx512vl"
    assert library._built() == newer


def test_a_folder_that_cannot_be_written_is_not_needed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(library, "_compile", lambda path, processor: made.append(path))
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != source.parent)
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "cache"))
    assert library._built() == made[0]
    assert made[0].parent == tmp_path / "cache" / "kernels"
