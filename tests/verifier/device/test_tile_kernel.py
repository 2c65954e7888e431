"""Our TPU kernel in Pallas' interpreter, against float64 attention and the portable one.

`tests/tpu` compiles it.
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from tests.verifier.device.attention_reference import Heads, Row
from tests.verifier.device.slots import token_slots

from blockdraft_models.decoder.attention import Reach
from blockdraft_models.precision import rounded_to_fp8
from blockdraft_verifier.device import portable_attention as portable
from blockdraft_verifier.device import tile_kernel
from blockdraft_verifier.device.cache import Attention, CacheLayout, allocate_kv
from blockdraft_verifier.device.paged_attention import PagedAttend
from blockdraft_verifier.device.portable_attention import (
    TILE_TOKENS,
    RaggedBatch,
    cut_into_tiles,
)

# A block is 16 pages of 16: the longest context has three.
ROWS, TOKENS, PAGE_SIZE, MAX_PAGES = 4, 32, 16, 40
NUM_PAGES = 80
BLOCK = PAGE_SIZE * 16
WINDOW = 70
# In slots that hold nothing of a sequence: must not matter.
STALE = 1e30


KINDS = [
    Heads(8, 1, 64),
    Heads(4, 2, 64, "bfloat16"),
    Heads(6, 2, 128),
    Heads(3, 1, 256),
    Heads(4, 2, 64, "bfloat16", fp8=True),
    Heads(6, 2, 128, fp8=True),
    Heads(5, 1, 144, "bfloat16", latent=True),
]


def attend(
    rng: np.random.Generator,
    heads: Heads,
    rows: list[Row],
    reach: Reach,
    joint: list[bool] | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return what the kernel and the portable attention make of rows, their pages at random."""
    pages = rng.permutation(NUM_PAGES)
    parts = 1 if heads.latent else 2
    cache = np.full((NUM_PAGES * PAGE_SIZE, heads.kv, parts, heads.dim), STALE, np.float32)
    q = np.full((TOKENS, heads.count, heads.dim), STALE, np.float32)
    starts = np.cumsum([0, *(len(row.q) for row in rows), *[0] * (ROWS - len(rows))])
    contexts = np.zeros(ROWS, np.int32)
    table = rng.integers(0, NUM_PAGES, (ROWS, MAX_PAGES))
    for index, row in enumerate(rows):
        contexts[index] = len(row.k)
        count = -(-len(row.k) // PAGE_SIZE)
        table[index, :count], pages = pages[:count], pages[count:]
        at = token_slots(table[index, :count].tolist(), 0, len(row.k), PAGE_SIZE)
        cache[at] = np.stack([row.k, row.v][:parts], axis=2)
        q[starts[index] : starts[index + 1]] = row.q
    arrays = (starts, contexts, table, np.zeros(TOKENS))
    batch = RaggedBatch(*(jnp.asarray(array, jnp.int32) for array in arrays))
    if joint is not None:
        batch = batch._replace(joint=jnp.asarray(joint + [False] * (ROWS - len(joint))))
    held = rounded_to_fp8(jnp.asarray(cache)) if heads.fp8 else jnp.asarray(cache, heads.dtype)
    operands = jnp.asarray(q, heads.dtype), held, batch
    compiled = heads, reach.window, reach.canvas
    ours, expected = run(*compiled, *operands, reach.applies, reach.sinks)
    ends = list(itertools.pairwise(starts[: len(rows) + 1]))
    return (
        [np.asarray(ours, np.float32)[a:b] for a, b in ends],
        [np.asarray(expected, np.float32)[a:b] for a, b in ends],
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def run(
    heads: Heads,
    window: int,
    canvas: int,
    q: Float[Array, "tokens heads head_dim"],
    cache: Float[Array, "slots kv_heads parts head_dim"],
    batch: RaggedBatch,
    applies: Array | None,
    sinks: Array | None,
) -> tuple[Float[Array, "tokens heads head_dim"], Float[Array, "tokens heads head_dim"]]:
    reach = Reach(window, applies, sinks, canvas=canvas)
    paged = cache.reshape(NUM_PAGES, PAGE_SIZE, -1, heads.dim)
    tiles = cut_into_tiles(batch, TOKENS, TILE_TOKENS)
    expected = portable.ragged_paged_attention(q, paged, batch, tiles, reach)
    padding = tile_kernel.padded(heads.dim, latent=heads.latent) - heads.dim
    flat = jnp.pad(paged, ((0, 0), (0, 0), (0, 0), (0, padding))).reshape(NUM_PAGES, PAGE_SIZE, -1)
    tiles = tile_kernel.tiles_of(batch, TOKENS, heads.count)
    ours = tile_kernel.ragged_paged_attention(
        q, flat, batch, tiles, heads.kv, reach, latent=heads.latent, interpret=True
    )
    return ours, expected


# Decoding rows, blocks, a prompt of several tiles; around the edges of pages, blocks and window.
STEPS = [
    [(1, 1), (1, 16), (1, 17), (1, 3 * BLOCK // 2)],
    [(8, BLOCK - 1), (8, BLOCK), (8, BLOCK + 1), (8, BLOCK + 4)],
    [(29, 29), (2, WINDOW), (1, 2 * BLOCK + 1)],
    [(32, 600)],
    [(4, WINDOW + 1), (20, BLOCK + WINDOW), (1, BLOCK + WINDOW - 1)],
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_equals_attention_in_float64(kind: Heads) -> None:
    rng = np.random.default_rng(kind.dim)
    sinks = rng.normal(0, 2, kind.count).astype(np.float32)
    far, near = (Reach(WINDOW, jnp.bool_(applies), jnp.asarray(sinks)) for applies in (False, True))
    tolerance = 2e-2 if kind.dtype == "bfloat16" else 1e-5
    for step, reach in [*itertools.product(STEPS, (Reach(), near)), (STEPS[-1], far)]:
        rows = [Row.random(rng, kind, *sizes) for sizes in step]
        window = WINDOW if reach is near else 0
        for row, ours, expected in zip(rows, *attend(rng, kind, rows, reach), strict=True):
            exact = row.attended(window, None if reach.sinks is None else sinks)
            np.testing.assert_allclose(ours, exact, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)


# Rows end with a canvas, as those of a diffusion target do.
@pytest.mark.parametrize("canvas", [4, 10])
def test_positions_of_a_canvas_see_each_other(canvas: int) -> None:
    rng, kind = np.random.default_rng(canvas), KINDS[1]
    whole = BLOCK // canvas * canvas
    for step in (
        [(canvas, canvas), (2 * canvas, whole)],
        [(canvas, whole + canvas)],
        [(2 * canvas, 2 * whole)],
    ):
        rows = [Row.random(rng, kind, *sizes) for sizes in step]
        attended = attend(rng, kind, rows, Reach(canvas=canvas))
        for row, ours, expected in zip(rows, *attended, strict=True):
            exact = row.attended(canvas=canvas)
            np.testing.assert_allclose(ours, exact, rtol=2e-2, atol=2e-2)
            np.testing.assert_allclose(ours, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("window", [0, WINDOW])
def test_tokens_of_a_joint_row_see_each_other(window: int) -> None:
    rng, kind = np.random.default_rng(window), KINDS[1]
    joint = [True, False, True]
    for step in (
        [(8, 8), (8, BLOCK + 4), (16, BLOCK + 8)],
        [(20, BLOCK + 100), (1, 300), (11, 2 * BLOCK + 1)],
    ):
        rows = [Row.random(rng, kind, *sizes) for sizes in step]
        attended = attend(rng, kind, rows, Reach(window), joint)
        for index, (row, ours, expected) in enumerate(zip(rows, *attended, strict=True)):
            exact = row.attended(window, joint=joint[index])
            np.testing.assert_allclose(ours, exact, rtol=2e-2, atol=2e-2)
            np.testing.assert_allclose(ours, expected, rtol=2e-2, atol=2e-2)


def test_a_row_is_the_same_beside_any_others() -> None:
    rng, kind = np.random.default_rng(0), KINDS[1]
    reach = Reach(WINDOW, jnp.bool_(True), jnp.ones(kind.count))
    for length, context in ((1, 300), (8, BLOCK + 3), (5, 20)):
        row = Row.random(rng, kind, length, context)
        alone = attend(rng, kind, [row], reach)[0][0]
        for _ in range(3):
            sizes = zip(rng.integers(1, 9, ROWS - 1), rng.integers(9, 300, ROWS - 1), strict=True)
            crowd = [Row.random(rng, kind, *map(int, each)) for each in sizes]
            place = int(rng.integers(0, ROWS))
            crowd.insert(place, row)
            np.testing.assert_array_equal(attend(rng, kind, crowd, reach)[0][place], alone)


def test_what_a_step_stores_is_read_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted = partial(tile_kernel.ragged_paged_attention, interpret=True)
    monkeypatch.setattr(tile_kernel, "ragged_paged_attention", interpreted)
    rng, (heads, kv_heads, dim) = np.random.default_rng(0), (4, 2, 80)
    sequence = [
        jnp.asarray(rng.normal(0, 1, (24, count, dim)), jnp.float32)
        for count in (heads, kv_heads, kv_heads)
    ]
    both: list[list[Array]] = []
    kinds: tuple[Attention, ...] = ("portable", "tiles")
    for attention in kinds:
        width = dim if attention == "portable" else tile_kernel.padded(dim)
        layout = CacheLayout(1, 8, PAGE_SIZE, kv_heads, width, jnp.float32, attention=attention)
        [cache], outs = allocate_kv(layout), []
        for start, stop in ((0, 20), (20, 24)):
            at = token_slots([5, 2], start, stop, PAGE_SIZE)
            arrays = ([0, stop - start], [stop], [[5, 2]], at)
            batch = RaggedBatch(*(jnp.asarray(array, jnp.int32) for array in arrays))
            attend = PagedAttend(batch, layout)
            q, k, v = (part[start:stop] for part in sequence)
            out, cache = attend(q, k, v, cache)
            outs.append(out)
        both.append(outs)
    for expected, ours in zip(*both, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_step_of_padding_is_computed() -> None:
    ours, _ = attend(np.random.default_rng(0), KINDS[1], [], Reach(WINDOW, jnp.bool_(True)))
    assert ours == []


def test_tiles_of_many_heads_are_short() -> None:
    shapes = (2,), (1,), (1, 1), (512,)
    batch = RaggedBatch(*(jnp.zeros(shape, jnp.int32) for shape in shapes))
    for heads, (tiles, tokens) in {4: (1, 512), 8: (2, 256), 64: (16, 32)}.items():
        assert tile_kernel.tiles_of(batch, 512, heads).token.shape == (tiles, tokens)
