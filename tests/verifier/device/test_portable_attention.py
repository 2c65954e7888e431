"""Ragged paged attention against plain float64 attention over each whole sequence."""

import itertools
import random
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from tests.verifier.device.attention_reference import Heads, Row
from tests.verifier.device.slots import token_slots

from blockdraft_models.decoder.attention import Reach
from blockdraft_verifier.device.portable_attention import (
    CONTEXT_CHUNK_TOKENS,
    TILE_TOKENS,
    RaggedBatch,
    attend,
    cut_into_tiles,
    ragged_paged_attention,
    write_kv,
)

pytestmark = pytest.mark.usefixtures("arithmetic")

ROWS, TOKENS, HEADS, HEAD_DIM = 4, 32, 4, 8
MAX_CONTEXT = 300
# Page sizes below, at half and above a context chunk, with two, one and four KV heads.
LAYOUTS = [(16, 2), (64, 1), (192, 4)]
# In slots that hold nothing of a sequence: must not matter.
STALE = np.float32(1e30)


def random_row(rng: np.random.Generator, length: int, context: int, kv_heads: int) -> Row:
    return Row.random(rng, Heads(HEADS, kv_heads, HEAD_DIM), length, context)


@partial(jax.jit, static_argnums=(5, 6))
def run(
    q: Float[Array, "tokens heads head_dim"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    cache: Float[Array, "pages page_size kv_slots head_dim"],
    batch: RaggedBatch,
    canvas: int = 1,
    window: int = 0,
) -> tuple[
    Float[Array, "tokens heads head_dim"], Float[Array, "pages page_size kv_slots head_dim"]
]:
    cache = write_kv(cache, k, v, batch.slots)
    return attend(q, cache, batch, Reach(window, canvas=canvas)), cache


@dataclass
class Ran:
    out: list[np.ndarray]  # of each row
    before: np.ndarray
    after: np.ndarray
    written: np.ndarray  # slots
    kv: np.ndarray  # of the batch's tokens, as slots hold it


def run_paged(
    rows: list[Row | None],
    page_size: int,
    kv_heads: int,
    rng: np.random.Generator,
    stale: float = float(STALE),
    canvas: int = 1,
    window: int = 0,
    joint: list[bool] | None = None,
) -> Ran:
    """Run rows (None: padding) over a cache whose pages are dealt out at random."""
    max_pages = -(-MAX_CONTEXT // page_size)
    num_pages = ROWS * max_pages + 1
    pages = rng.permutation(num_pages)
    flat = np.full((num_pages * page_size, 2 * kv_heads, HEAD_DIM), stale, np.float32)
    arrays = [np.full((TOKENS, heads, HEAD_DIM), STALE, np.float32) for heads in (4, kv_heads)]
    q, k, v = arrays[0], arrays[1], arrays[1].copy()
    slots = np.full(TOKENS, len(flat), np.int32)
    row_starts, contexts = [0], []
    # Entries past the end of a sequence are some other page.
    table = rng.integers(0, num_pages, (ROWS, max_pages)).astype(np.int32)
    for index in range(ROWS):
        row = rows[index] if index < len(rows) else None
        start = row_starts[-1]
        if row is None:
            row_starts.append(start)
            contexts.append(0)
            continue
        context = len(row.k)
        count = -(-context // page_size)
        own = pages[index * max_pages : index * max_pages + count]
        table[index, :count] = own
        stop, known = start + len(row.q), context - len(row.q)
        at = token_slots(own.tolist(), 0, context, page_size)
        flat[at[:known], 0::2], flat[at[:known], 1::2] = row.k[:known], row.v[:known]
        q[start:stop], k[start:stop], v[start:stop] = row.q, row.k[known:], row.v[known:]
        slots[start:stop] = at[known:]
        row_starts.append(stop)
        contexts.append(context)
    before = flat.reshape(num_pages, page_size, 2 * kv_heads, HEAD_DIM)
    batch = RaggedBatch(
        jnp.asarray(np.array(row_starts, np.int32)),
        jnp.asarray(np.array(contexts, np.int32)),
        jnp.asarray(table),
        jnp.asarray(slots),
    )
    if joint is not None:
        batch = batch._replace(joint=jnp.asarray(joint + [False] * (ROWS - len(joint))))
    out, after = run(*(jnp.asarray(array) for array in (q, k, v, before)), batch, canvas, window)
    outs = [np.asarray(out)[a:b] for a, b in itertools.pairwise(row_starts)]
    kv = np.stack([k, v], axis=2).reshape(TOKENS, 2 * kv_heads, HEAD_DIM)
    total = row_starts[-1]
    return Ran(outs, flat, np.asarray(after).reshape(flat.shape), slots[:total], kv[:total])


def random_rows(
    seed: int, page_size: int, kv_heads: int, rng: np.random.Generator
) -> list[Row | None]:
    """Return one to four rows of together at most `TOKENS` tokens; some are padding."""
    choose = random.Random(seed)
    edges = [
        edge + offset
        for edge in (page_size, CONTEXT_CHUNK_TOKENS, 2 * CONTEXT_CHUNK_TOKENS)
        for offset in (-1, 0, 1)
    ]
    rows: list[Row | None] = []
    left = TOKENS
    for _ in range(choose.randint(1, ROWS)):
        if left == 0 or choose.random() < 0.1:
            rows.append(None)
            continue
        length = choose.choice([1, 1, 4, choose.randint(1, left)])
        length = min(length, left)
        left -= length
        context = max(length, choose.choice([length, *edges, choose.randint(1, MAX_CONTEXT)]))
        rows.append(random_row(rng, length, context, kv_heads))
    return rows


@pytest.mark.parametrize(("page_size", "kv_heads"), LAYOUTS)
@pytest.mark.parametrize("seed", range(8))
def test_ragged_rows_attend_as_whole_sequences(page_size: int, kv_heads: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(seed, page_size, kv_heads, rng)
    ran = run_paged(rows, page_size, kv_heads, rng)
    for row, out in zip(rows, ran.out, strict=False):
        if row is not None:
            np.testing.assert_allclose(out, row.attended(), rtol=1e-5, atol=1e-5)
    # The tokens' own slots hold their keys and values; padding has written nothing.
    expected = ran.before.copy()
    expected[ran.written] = ran.kv
    np.testing.assert_array_equal(ran.after, expected)


@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("edge", [16, CONTEXT_CHUNK_TOKENS, 2 * CONTEXT_CHUNK_TOKENS])
def test_contexts_around_the_edges_of_pages_and_chunks(edge: int, offset: int) -> None:
    rng = np.random.default_rng(edge + offset)
    rows: list[Row | None] = [
        random_row(rng, 1, edge + offset, 2),
        # Its tokens cross the edge.
        random_row(rng, 8, edge + offset + 4, 2),
    ]
    ran = run_paged(rows, 16, 2, rng)
    for row, out in zip(rows, ran.out, strict=False):
        assert row is not None
        np.testing.assert_allclose(out, row.attended(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("long_first", [False, True])
def test_a_long_context_beside_a_short_one_is_read_by_its_own_row_only(long_first: bool) -> None:
    rng = np.random.default_rng(0)
    # Both fill whole chunks, so that neither reads a slot that is not its own.
    contexts = [4 * CONTEXT_CHUNK_TOKENS, CONTEXT_CHUNK_TOKENS]
    rows = [random_row(rng, 16, context, 2) for context in contexts]
    rows = rows if long_first else rows[::-1]
    # A read past its end meets pages of nothing but NaN, which no weight of zero hides.
    ran = run_paged([*rows], 16, 2, rng, stale=np.nan)
    for row, out in zip(rows, ran.out, strict=False):
        np.testing.assert_allclose(out, row.attended(), rtol=1e-5, atol=1e-5)


def test_one_row_of_every_token_and_rows_of_one_token() -> None:
    rng = np.random.default_rng(0)
    batches: list[list[Row | None]] = [
        [random_row(rng, TOKENS, TOKENS, 2)],
        [None, None, None, random_row(rng, TOKENS, MAX_CONTEXT, 2)],
        [random_row(rng, 1, 1, 2) for _ in range(ROWS)],
        [random_row(rng, TOKENS - 3, 200, 2), *(random_row(rng, 1, 9, 2) for _ in range(3))],
        [*(random_row(rng, 1, 9, 2) for _ in range(3)), random_row(rng, TOKENS - 3, 200, 2)],
        [random_row(rng, 9, 9, 2), random_row(rng, 9, 9, 2), random_row(rng, 9, 9, 2)],
    ]
    for rows in batches:
        for row, out in zip(rows, run_paged(rows, 16, 2, rng).out, strict=False):
            if row is not None:
                np.testing.assert_allclose(out, row.attended(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_a_row_is_the_same_beside_any_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = random_row(rng, 5, 140, 2)
    alone = run_paged([row], 16, 2, rng).out[0]
    crowd: list[Row | None] = [
        random_row(rng, int(rng.integers(1, 9)), int(rng.integers(9, MAX_CONTEXT)), 2)
        for _ in range(ROWS - 1)
    ]
    place = int(rng.integers(0, ROWS))
    crowd.insert(place, row)
    np.testing.assert_array_equal(run_paged(crowd, 16, 2, rng).out[place], alone)


@pytest.mark.parametrize("canvas", [4, 12])
@pytest.mark.parametrize("seed", range(4))
def test_positions_of_a_canvas_see_each_other_beside_any_rows(canvas: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows: list[Row | None] = []
    for _ in range(rng.integers(1, 3)):
        context = canvas * int(rng.integers(1, MAX_CONTEXT // canvas + 1))
        rows.append(random_row(rng, canvas, context, 2))
    ran = run_paged(rows, 16, 2, rng, canvas=canvas)
    for index, row in enumerate(rows):
        assert row is not None
        expected = row.attended(canvas=canvas)
        np.testing.assert_allclose(ran.out[index], expected, rtol=1e-5, atol=1e-5)
        alone = run_paged([row], 16, 2, rng, canvas=canvas)
        np.testing.assert_array_equal(alone.out[0], ran.out[index])


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("seed", range(4))
def test_tokens_of_a_joint_row_see_each_other_beside_any_rows(window: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows: list[Row | None] = [
        random_row(rng, length, int(rng.integers(length, MAX_CONTEXT + 1)), 2)
        for length in rng.permutation([12, 9, 7]).tolist()
    ]
    joint = [True, False, True]
    ran = run_paged(rows, 16, 2, rng, window=window, joint=joint)
    for index, row in enumerate(rows):
        assert row is not None
        expected = row.attended(window, joint=joint[index])
        np.testing.assert_allclose(ran.out[index], expected, rtol=1e-5, atol=1e-5)
        alone = run_paged([row], 16, 2, rng, window=window, joint=[joint[index]])
        np.testing.assert_array_equal(alone.out[0], ran.out[index])


@pytest.mark.parametrize("applies", [None, False, True])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("window", [0, 1, 70])
def test_windows_and_sinks_are_those_of_the_tiles(
    window: int, with_sinks: bool, applies: bool | None
) -> None:
    rng = np.random.default_rng(window)
    cache = jnp.asarray(rng.standard_normal((20, 16, 4, HEAD_DIM)), jnp.float32)
    q = jnp.asarray(rng.standard_normal((TOKENS, HEADS, HEAD_DIM)), jnp.float32)
    lengths, contexts = np.array([1, 20, 0, 9], np.int32), np.array([130, 90, 0, 9], np.int32)
    batch = RaggedBatch(
        jnp.asarray(np.cumsum([0, *lengths]).astype(np.int32)),
        jnp.asarray(contexts),
        jnp.asarray(rng.permutation(20)[None].repeat(ROWS, 0).astype(np.int32)),
        jnp.zeros(TOKENS, jnp.int32),
    )
    sinks = jnp.asarray(rng.standard_normal(HEADS), jnp.float32) if with_sinks else None
    reach = Reach(window, None if applies is None else jnp.asarray(applies), sinks)
    tiles = cut_into_tiles(batch, TOKENS, TILE_TOKENS)
    expected = ragged_paged_attention(q, cache, batch, tiles, reach)
    np.testing.assert_allclose(attend(q, cache, batch, reach), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("rows", "tokens"), [(1, 8), (4, 4), (4, 32), (8, 16)])
def test_tiles_hold_every_token_once_and_never_two_rows(rows: int, tokens: int) -> None:
    cut = jax.jit(partial(cut_into_tiles, token_count=tokens, tile_tokens=TILE_TOKENS))
    choose = random.Random(rows * tokens)
    for _ in range(20):
        lengths = [0] * rows
        for _ in range(choose.randint(0, tokens)):
            lengths[choose.randrange(rows) if choose.random() < 0.5 else 0] += 1
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        contexts = [length + choose.randint(0, 50) for length in lengths]
        tiles = cut(
            RaggedBatch(
                jnp.asarray(starts),
                jnp.asarray(np.array(contexts, np.int32)),
                jnp.zeros((rows, 1), jnp.int32),
                jnp.zeros(tokens, jnp.int32),
            )
        )
        row, token, position, *_ = (np.asarray(array) for array in tiles)
        seen = {}
        for tile, row_of_tile in enumerate(row):
            for at, where in zip(token[tile], position[tile], strict=True):
                if at == tokens:
                    assert where == -1
                    continue
                assert at not in seen
                seen[int(at)] = (int(row_of_tile), int(where))
        assert seen == {
            int(starts[r]) + i: (r, contexts[r] - lengths[r] + i)
            for r in range(rows)
            for i in range(lengths[r])
        }
