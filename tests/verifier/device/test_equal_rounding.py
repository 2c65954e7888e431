"""The parts of a step give the same bits for a row whatever is computed beside it."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_models.decoder.products import row_sums, share_sums, sums_in_whole_numbers
from blockdraft_verifier.device.portable_attention import RaggedBatch, attend

pytestmark = pytest.mark.usefixtures("arithmetic")

PAGE_SIZE, PAGES = 16, 24


@pytest.mark.parametrize("width", [1, 8, 32, 64, 80, 128, 576, 1024, 4096, 8192])
def test_sums_of_rows_do_not_depend_on_how_many_there_are(width: int) -> None:
    rows = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    expected = np.asarray(jax.jit(row_sums)(rows))
    np.testing.assert_allclose(expected, rows.astype(np.float64).sum(-1), rtol=1e-4, atol=1e-4)
    for count in (1, 2, 5, 8, 65, 512, 4100 if width <= 576 else 300):
        many = np.tile(rows, (-(-count // 3), 1))[:count]
        found = np.asarray(jax.jit(row_sums)(many))
        np.testing.assert_array_equal(found, np.resize(expected, count))


def test_no_rows_have_no_sums() -> None:
    assert jax.jit(row_sums)(np.zeros((0, 3, 70), np.float32)).shape == (0, 3)


def test_leading_axes_are_kept() -> None:
    x = np.random.default_rng(0).random((2, 3, 5, 70), np.float32)
    sums = jax.jit(row_sums)(x)
    assert sums.shape == (2, 3, 5)
    np.testing.assert_allclose(sums, np.sum(x, axis=-1, dtype=np.float64), rtol=1e-6)


def test_gradients_of_sums() -> None:
    x = np.random.default_rng(0).standard_normal((3, 130)).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda x: row_sums(x * x).sum()))(x)
    np.testing.assert_allclose(gradient, 2 * x, rtol=1e-6)


@pytest.mark.parametrize("sums", [share_sums, sums_in_whole_numbers])
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 3000.0])
def test_sums_of_shares(sums: Callable[[jax.Array], jax.Array], spread: float) -> None:
    logits = np.random.default_rng(0).standard_normal((5, 50_000)) * spread
    x = np.exp(logits - logits.max(axis=1, keepdims=True)).astype(np.float32)
    found = np.asarray(jax.jit(sums)(x))
    np.testing.assert_allclose(found, x.sum(axis=1, dtype=np.float64), rtol=1e-6)


def test_whole_numbers_have_one_sum_in_any_order() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((4, 1 << 18), np.float32) ** 20
    x[0] = 1.0
    found = np.asarray(jax.jit(sums_in_whole_numbers)(x))
    assert found[0] == 1 << 18
    for _ in range(3):
        again = np.asarray(jax.jit(sums_in_whole_numbers)(x[:, rng.permutation(1 << 18)]))
        np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize(
    ("kv_heads", "group", "head_dim"),
    [(3, 3, 64), (2, 2, 8), (1, 1, 16), (2, 1, 64), (2, 2, 32), (2, 5, 80), (1, 4, 128)],
)
def test_attention_does_not_depend_on_the_rest_of_the_step(
    kv_heads: int, group: int, head_dim: int
) -> None:
    rng = np.random.default_rng(head_dim)
    cache = jnp.asarray(
        rng.standard_normal((PAGES, PAGE_SIZE, 2 * kv_heads, head_dim)), jnp.float32
    )
    queries = rng.standard_normal((256, kv_heads * group, head_dim)).astype(np.float32)
    table = rng.permutation(PAGES)[:16].astype(np.int32)

    @jax.jit
    def attended(q: jax.Array, batch: RaggedBatch) -> jax.Array:
        return attend(q, cache, batch)

    def ends(stops: Sequence[int], tokens: int) -> np.ndarray:
        """Attention of the last `tokens` positions before each stop, for the last one alone."""
        starts = np.arange(0, tokens * len(stops) + 1, tokens, dtype=np.int32)
        batch = RaggedBatch(
            jnp.asarray(starts),
            jnp.asarray(np.array(stops, np.int32)),
            jnp.asarray(np.tile(table, (len(stops), 1))),
            jnp.zeros(starts[-1], jnp.int32),
        )
        q = np.concatenate([queries[stop - tokens : stop] for stop in stops])
        return np.asarray(attended(jnp.asarray(q), batch))[-tokens:]

    whole = ends([192], 32)
    for tokens, beside in [(1, []), (2, []), (8, []), (1, [70, 256, 9]), (4, [256, 64, 200])]:
        pieces = [ends([*beside, stop], tokens) for stop in range(160 + tokens, 193, tokens)]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
