"""What is drafted for sampled and greedy sequences side by side, against float64 NumPy."""

import random

import jax
import numpy as np
import pytest
from tests.drafter.sampled import log_chance, random_sampling, reference_scores

from blockdraft_drafter.compiled.programs import draft_tokens
from blockdraft_models.decoder.sampling import pack_sampling
from blockdraft_models.sampling_options import GREEDY, Sampling

CHOICES, VOCAB, DRAFT = 32, 50, 21

draft = jax.jit(draft_tokens, static_argnames="sharpness")


def inputs(seed: int, own: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return logits, positions and the draft vocabulary."""
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.permutation(VOCAB)[:DRAFT]).astype(np.int32) if own else None
    logits = rng.normal(0, 2, (CHOICES, DRAFT if own else VOCAB)).astype(np.float32)
    return logits, rng.integers(0, 2**20, CHOICES).astype(np.int32), ids


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_drafts_are_the_noisy_argmax_of_what_is_kept(seed: int, own: bool) -> None:
    logits, positions, ids = inputs(seed, own)
    rng = random.Random(seed)
    options = [random_sampling(rng) for _ in range(CHOICES)]
    sharpness = rng.choice([1.0, 1.7])
    tokens, log_chances = draft(
        logits, positions, pack_sampling(options, len(options)), ids, sharpness=sharpness
    )
    every = np.arange(VOCAB) if ids is None else ids.astype(np.int64)
    likeliest_too = 0
    for row, (line, option) in enumerate(zip(logits.astype(np.float64), options, strict=True)):
        scores = reference_scores(line, int(positions[row]), option, every, VOCAB, sharpness)
        wanted = int(scores.argmax())
        assert tokens[row] == every[wanted]
        assert log_chances[row] == pytest.approx(log_chance(scores, option), rel=1e-4, abs=1e-5)
        likeliest_too += int(np.argmax(line)) == wanted
    assert likeliest_too < CHOICES, "the Gumbel noise decided nothing"


@pytest.mark.parametrize("own", [False, True])
def test_a_greedy_sequence_gets_the_same_bits_beside_a_sampled_one(own: bool) -> None:
    logits, positions, ids = inputs(3, own)
    greedy = [GREEDY] * (CHOICES - 1)
    tokens, log_chances = draft(
        logits, positions, pack_sampling([GREEDY, *greedy], len(greedy) + 1), ids
    )
    beside = draft(
        logits, positions, pack_sampling([Sampling(1.0, seed=5), *greedy], len(greedy) + 1), ids
    )
    best = logits.argmax(axis=1)
    np.testing.assert_array_equal(tokens, best if ids is None else ids[best])
    np.testing.assert_array_equal(beside[0][1:], tokens[1:])
    np.testing.assert_array_equal(beside[1][1:], log_chances[1:])


def test_the_lowest_id_among_equals_is_drafted() -> None:
    logits, positions, _ = inputs(4, False)
    logits = np.round(logits)
    assert ((logits == logits.max(axis=1, keepdims=True)).sum(axis=1) > 1).any()
    tokens, _ = draft(logits, positions, pack_sampling([GREEDY] * CHOICES, CHOICES), None)
    np.testing.assert_array_equal(tokens, logits.argmax(axis=1))


@pytest.mark.parametrize("temperature", [1e-30, 1e30])
def test_extreme_temperatures_draft_tokens(temperature: float) -> None:
    logits, positions, ids = inputs(2, True)
    assert ids is not None
    options = pack_sampling([Sampling(temperature, top_p=0.9, seed=8)] * CHOICES, CHOICES)
    tokens, log_chances = draft(logits, positions, options, ids)
    assert np.isin(tokens, ids).all()
    assert np.isfinite(log_chances).all()
