"""How the TPU kernel is called, proven with the reference that JAX ships beside it.

The kernel itself runs on a TPU only; `tests/tpu` compiles it.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import ragged_paged_attention as library

from blockdraft_models.precision import FP8
from blockdraft_verifier.device import kernel_attention as kernel
from blockdraft_verifier.device import portable_attention as portable
from blockdraft_verifier.device.portable_attention import (
    TILE_TOKENS,
    RaggedBatch,
    cut_into_tiles,
    write_kv,
)

TOKENS, ROWS, PAGE_SIZE, MAX_PAGES, NUM_PAGES = 16, 4, 4, 8, 20


def random_batch(rng: np.random.Generator, lengths: list[int], contexts: list[int]) -> RaggedBatch:
    """Return rows and then padding rows, their pages dealt out at random."""
    pages = rng.permutation(NUM_PAGES)
    starts, table = [0], np.zeros((ROWS, MAX_PAGES), np.int32)
    slots = np.full(TOKENS, NUM_PAGES * PAGE_SIZE, np.int32)
    for row, (length, context) in enumerate(zip(lengths, contexts, strict=True)):
        table[row, :4] = pages[4 * row : 4 * row + 4]
        positions = np.arange(context - length, context)
        at = table[row, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        slots[starts[-1] : starts[-1] + length] = at
        starts.append(starts[-1] + length)
    starts += [starts[-1]] * (ROWS - len(lengths))
    padded = [*contexts, *[0] * (ROWS - len(contexts))]
    arrays = (starts, padded, table, slots)
    return RaggedBatch(*(jnp.asarray(np.asarray(array, np.int32)) for array in arrays))


def as_kernel(*arguments: Any, **options: Any) -> jax.Array:
    """Run the library's reference; what tunes the kernel does not concern it."""
    for name in ("num_kv_pages_per_block", "num_queries_per_block"):
        assert options.pop(name) >= 1
    live = arguments[0].shape[0]
    out = library.ref_ragged_paged_attention(*arguments, **options)
    return jnp.pad(out, ((0, live - out.shape[0]), (0, 0), (0, 0)))


# With heads that are padded in number and in width, and with heads that are not.
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 2, 128)])
@pytest.mark.parametrize("held", [jnp.float32, FP8])
@pytest.mark.parametrize(
    ("lengths", "contexts"),
    [([1], [1]), ([16], [16]), ([5, 1, 3], [5, 16, 9]), ([4, 4, 4, 4], [4, 5, 8, 16])],
)
def test_equals_the_portable_attention(
    heads: int,
    kv_heads: int,
    head_dim: int,
    held: jnp.dtype,
    lengths: list[int],
    contexts: list[int],
) -> None:
    rng = np.random.default_rng(sum(contexts) + head_dim)
    batch = random_batch(rng, lengths, contexts)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(0, 1, shape), jnp.float32)

    q, k, v = (normal(TOKENS, count, head_dim) for count in (heads, kv_heads, kv_heads))
    cache = normal(NUM_PAGES, PAGE_SIZE, 2 * kv_heads, head_dim).astype(held)
    expected = portable.ragged_paged_attention(
        q, write_kv(cache, k, v, batch.slots), batch, cut_into_tiles(batch, TOKENS, TILE_TOKENS)
    )

    padding = kernel.padded(head_dim) - head_dim
    wide = partial(jnp.pad, pad_width=((0, 0), (0, 0), (0, padding)))
    stored = kernel.stored_heads(kv_heads, held)
    more = 2 * (stored - kv_heads)
    padded = jnp.pad(cache, ((0, 0), (0, 0), (0, more), (0, padding)))
    q, k, v = kernel.with_stored_heads(q, k, v, stored)
    written = write_kv(padded, wide(k), wide(v), batch.slots)
    actual = kernel.ragged_paged_attention(q, written, batch, as_kernel)[:, :heads]

    count = sum(lengths)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual[:count], expected[:count], rtol=1e-5, atol=1e-5)


def test_a_layer_of_many_has_its_own_pages() -> None:
    batch = random_batch(np.random.default_rng(0), [3, 2], [7, 6])
    moved = batch.moved(jnp.int32(2 * NUM_PAGES), PAGE_SIZE, 3 * NUM_PAGES)
    np.testing.assert_array_equal(moved.page_table, np.asarray(batch.page_table) + 2 * NUM_PAGES)
    offset = 2 * NUM_PAGES * PAGE_SIZE
    np.testing.assert_array_equal(moved.slots[:5], np.asarray(batch.slots[:5]) + offset)
    # Padding is not written to any layer.
    assert np.all(np.asarray(moved.slots[5:]) >= 3 * NUM_PAGES * PAGE_SIZE)


@pytest.mark.parametrize(
    ("kv_heads", "dtype", "stored"),
    [
        (1, jnp.bfloat16, 1),
        (3, jnp.bfloat16, 4),
        (5, jnp.bfloat16, 8),
        (8, jnp.bfloat16, 8),
        (10, jnp.bfloat16, 16),
        (3, jnp.float32, 4),
        (5, jnp.float32, 8),
        (1, FP8, 2),
        (2, FP8, 2),
        (3, FP8, 4),
        (8, FP8, 8),
        (10, FP8, 16),
    ],
)
def test_heads_fill_tiles(kv_heads: int, dtype: Any, stored: int) -> None:
    assert kernel.stored_heads(kv_heads, dtype) == stored
