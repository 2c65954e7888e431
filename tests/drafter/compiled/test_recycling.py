"""Recycled choices of slots, and the biases they give, against lists and loops in float64."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from blockdraft_drafter.compiled.packing import KEPT_CHOICES, PackedRecycled, pack_blocks
from blockdraft_drafter.compiled.recycling import (
    GREEDY,
    SAMPLED,
    RecycledOfSlots,
    with_recycled,
)
from blockdraft_drafter.method import DraftRow, Recycled
from blockdraft_models.sampling_options import Sampling

BLOCKS, VOCAB, DRAFT = 4, 12, 7
NO_FEATURES = np.zeros((0, 1), np.float32)
LENGTH = 4


def random_choices(rng: np.random.Generator, count: int) -> Recycled:
    """Return choices of few tokens and positions, so that many apply and several are the same."""
    return Recycled(
        rng.integers(LENGTH, LENGTH + 4, count).tolist(),
        rng.integers(0, 3, count).tolist(),
        rng.integers(0, VOCAB, count).tolist(),
    )


def biased(
    logits: np.ndarray, row: DraftRow, previous: int, position: int, ids: np.ndarray
) -> np.ndarray:
    """Return the logits of a block's draft vocabulary, `ids`, with the biases of its choices."""
    biases = SAMPLED if row.sampling.temperature else GREEDY
    result = logits.astype(np.float64)
    for at, after, token in list(zip(*row.recycled, strict=True))[-KEPT_CHOICES:]:
        if after == previous:
            result[ids == token] += biases.same if at == position else biases.elsewhere
        elif at == position == row.context_length + 1:
            result[ids == token] += biases.first
    return result


def pack(rows: list[DraftRow], ids: np.ndarray | None, vocab: int = VOCAB) -> PackedRecycled:
    """Return the choices of rows in slots of their own."""
    slots = RecycledOfSlots(len(rows), vocab, ids)
    for row in rows:
        slots.add(row)
    return slots.of(rows, len(rows))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_they_bias_the_token_that_was_chosen(seed: int, own: bool) -> None:
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.permutation(VOCAB)[: DRAFT if own else VOCAB])
    rows = [
        DraftRow(
            slot,
            LENGTH,
            NO_FEATURES,
            1,
            3,
            sampling=Sampling(temperature=float(slot % 2)),
            recycled=random_choices(rng, count),
        )
        for slot, count in enumerate((0, KEPT_CHOICES // 2, KEPT_CHOICES + 9, KEPT_CHOICES))
    ]
    logits = rng.normal(0, 2, (BLOCKS, len(ids))).astype(np.float32)
    previous, position = rng.integers(0, 3, BLOCKS), rng.integers(LENGTH + 1, LENGTH + 4, BLOCKS)
    blocks = pack_blocks(rows, BLOCKS, pack(rows, ids if own else None))
    changed = jax.jit(with_recycled)(logits, blocks, previous, position)
    wanted = [
        biased(line, row, int(before), int(at), ids)
        for line, row, before, at in zip(logits, rows, previous, position, strict=True)
    ]
    np.testing.assert_allclose(changed, wanted, atol=1e-4)
    assert not np.allclose(changed, logits), "some choice should apply"
    np.testing.assert_array_equal(changed[0], logits[0])


def test_a_slot_keeps_the_latest_of_its_sequence() -> None:
    rng, slots = np.random.default_rng(0), RecycledOfSlots(3, VOCAB, None)
    kept: dict[int, list[tuple[int, ...]]] = {0: [], 2: []}
    for step in range(60):
        slot = int(rng.choice([0, 2]))
        begins = step in (0, 1, 30)
        new = random_choices(rng, int(rng.integers(0, 20)))
        row = DraftRow(slot, 0 if begins else LENGTH, NO_FEATURES, 1, 3, recycled=new)
        slots.add(row)
        kept[slot] = [*([] if begins else kept[slot]), *zip(*new, strict=True)][-KEPT_CHOICES:]
        packed = slots.of([row, replace(row, slot=1)], 4)
        for block, wanted in enumerate((kept[slot], [], [], [])):
            padded = [(-1, -1, -1)] * (KEPT_CHOICES - len(wanted)) + wanted
            assert np.stack(packed)[:, block].T.tolist() == list(map(list, padded))
