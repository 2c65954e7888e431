"""The target's choice against float64 NumPy, its distribution, and what Gumbel noise depends on."""

import math
import random
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_models.decoder.sampling import (
    filter_logits,
    gumbel_noise,
    pack_sampling,
)
from blockdraft_models.sampling_options import Sampling
from blockdraft_verifier.device.accept import (
    choose_tokens,
    count_accepted,
    log_probabilities,
)

CHOICES, VOCAB = 64, 40
GREEDY = Sampling()
# Sums of probabilities this near to a limit may fall on either side of it in float32.
SLACK = 1e-5

choose = jax.jit(choose_tokens)
filtered = jax.jit(filter_logits)
noise = jax.jit(partial(gumbel_noise, token_ids=jnp.arange(VOCAB)))
log_probs = jax.jit(log_probabilities)


def random_logits(rng: np.random.Generator, choices: int = CHOICES) -> np.ndarray:
    """Return logits with many ties: multiples of 1/8."""
    return (np.round(rng.normal(0, 2, (choices, VOCAB)) * 8) / 8).astype(np.float32)


def random_options(rng: random.Random) -> Sampling:
    return Sampling(
        temperature=rng.choice([0.25, 0.7, 1.0, 3.0]),
        top_k=rng.choice([0, 0, 1, 2, 7, VOCAB - 1, VOCAB, VOCAB + 1, 2**31 - 1]),
        top_p=rng.choice([1.0, 1.0, 1e-9, 0.3, 0.9, 0.999]),
        min_p=rng.choice([0.0, 0.0, 1.0, 0.01, 0.3]),
        seed=rng.randrange(-(2**63), 2**63),
    )


def reference_kept(logits: np.ndarray, options: Sampling, slack: float = 0.0) -> np.ndarray:
    """Return which tokens survive the filters, by sorting; `slack` > 0 keeps more, < 0 fewer."""
    scaled = logits.astype(np.float64) / options.temperature
    descending = np.sort(scaled)[::-1]
    kept: np.ndarray = np.ones(len(scaled), bool)
    if 0 < options.top_k < len(scaled):
        kept = scaled >= descending[options.top_k - 1]
    weights = np.where(kept, np.exp(scaled - scaled.max()), 0.0)
    probabilities = weights / weights.sum()
    if options.top_p < 1.0:
        mass = np.cumsum(np.sort(probabilities)[::-1])
        enough = int(np.argmax(mass >= min(options.top_p + slack, mass[-1])))
        kept &= scaled >= descending[enough]
    least = min(options.min_p * (1.0 - slack), 1.0) * probabilities.max()
    kept &= probabilities >= least
    return kept


@pytest.mark.parametrize("seed", range(12))
def test_filters_keep_what_sorting_keeps(seed: int) -> None:
    rng = random.Random(seed)
    options = [random_options(rng) for _ in range(CHOICES)]
    logits = random_logits(np.random.default_rng(seed))
    scaled = logits / np.array([[o.temperature] for o in options], np.float32)
    kept = np.asarray(filtered(jnp.asarray(scaled), pack_sampling(options, CHOICES)))
    exact = 0
    for line, option, result in zip(logits, options, kept, strict=True):
        fewest = reference_kept(line, option, -SLACK)
        most = reference_kept(line, option, SLACK)
        finite = np.isfinite(result)
        assert (fewest <= finite).all()
        assert (finite <= most).all()
        exact += bool((fewest == most).all())
        np.testing.assert_array_equal(
            result[finite], (line / np.float32(option.temperature))[finite]
        )
    assert exact > 0.9 * CHOICES, "hardly anything was put to the test"


@pytest.mark.parametrize("narrow", [Sampling(1.0, top_k=1), Sampling(1.0, top_p=1e-9)])
@pytest.mark.parametrize("top", [-30.0, -1.0, -1e-30, 1e-30, 1.0, 2.0, 30.0])
def test_neighbouring_floats_are_told_apart(narrow: Sampling, top: float) -> None:
    logits = np.full((CHOICES, VOCAB), -40, np.float32)
    logits[:, 5] = top
    logits[:, 6] = np.nextafter(np.float32(top), np.float32(-np.inf))
    kept = np.asarray(filtered(jnp.asarray(logits), pack_sampling([narrow] * CHOICES, CHOICES)))
    assert np.isfinite(kept).sum(axis=1).tolist() == [1] * CHOICES
    assert np.isfinite(kept[:, 5]).all()


@pytest.mark.parametrize("seed", range(6))
def test_choices_are_the_noisy_argmax_of_what_is_kept(seed: int) -> None:
    rng = random.Random(100 + seed)
    rows = [random_options(rng) if rng.random() < 0.7 else GREEDY for _ in range(8)]
    row = np.array([rng.randrange(8) for _ in range(CHOICES)], np.int32)
    position = np.array([rng.randrange(2**20) for _ in range(CHOICES)], np.int32)
    # No ties and no sums near a limit here: those are the other test's.
    logits = np.random.default_rng(seed).normal(0, 2, (CHOICES, VOCAB)).astype(np.float32)
    sampling = pack_sampling(rows, 8)
    choices = np.asarray(
        choose(jnp.asarray(logits), jnp.asarray(position), jnp.asarray(row), sampling)
    )
    gumbel = np.asarray(noise(sampling.seed[jnp.asarray(row)], jnp.asarray(position)))
    for index, choice in enumerate(choices):
        option = rows[row[index]]
        if option.temperature == 0.0:
            assert choice == np.argmax(logits[index])
            continue
        noisy = logits[index].astype(np.float64) / option.temperature + gumbel[index]
        kept = reference_kept(logits[index], option)
        assert choice == np.argmax(np.where(kept, noisy, -np.inf))


def test_an_all_greedy_batch_takes_the_first_of_the_likeliest() -> None:
    logits = np.zeros((CHOICES, VOCAB), np.float32)
    logits[np.arange(CHOICES), np.arange(CHOICES) % VOCAB] = 1.0
    logits[:, VOCAB - 1] = 1.0
    zeros = jnp.zeros(CHOICES, jnp.int32)
    choices = choose(jnp.asarray(logits), zeros, zeros, pack_sampling([GREEDY], 8))
    assert choices.tolist() == [i % VOCAB for i in range(CHOICES)]


@pytest.mark.parametrize("temperature", [1e-45, 1e-40, 1e-38, 1e-37, 1e-30, 1e-10, 1e-4])
@pytest.mark.parametrize("filters", [GREEDY, Sampling(top_k=3, top_p=0.9, min_p=0.1)])
def test_a_tiny_temperature_is_greedy(temperature: float, filters: Sampling) -> None:
    logits = 10 * np.random.default_rng(1).normal(0, 2, (CHOICES, VOCAB)).astype(np.float32)
    options = replace(filters, temperature=temperature, seed=5)
    position = jnp.arange(CHOICES, dtype=jnp.int32)
    row = jnp.zeros(CHOICES, jnp.int32)
    choices = choose(jnp.asarray(logits), position, row, pack_sampling([options], 8))
    assert choices.tolist() == np.argmax(logits, axis=-1).tolist()


def test_gumbel_noise_depends_on_seed_and_position_alone() -> None:
    rng = random.Random(3)
    rows = [replace(random_options(rng), seed=seed) for seed in range(-4, 4)]
    logits = random_logits(np.random.default_rng(3))
    row = np.array([i % 8 for i in range(CHOICES)], np.int32)
    position = np.array([i // 8 + 100 for i in range(CHOICES)], np.int32)
    packed = pack_sampling(rows, 8)
    together = np.asarray(
        choose(jnp.asarray(logits), jnp.asarray(position), jnp.asarray(row), packed)
    )
    # Elsewhere in the batch, beside other rows.
    order = np.random.default_rng(4).permutation(CHOICES)
    others = np.arange(CHOICES) % 3 == 0
    elsewhere = np.where(others[:, None], random_logits(np.random.default_rng(5)), logits[order])
    moved = np.asarray(
        choose(
            jnp.asarray(elsewhere),
            jnp.asarray(position[order]),
            jnp.asarray(row[order]),
            packed,
        )
    )
    np.testing.assert_array_equal(moved[~others], together[order][~others])
    # Alone.
    for index in (0, 13, 63):
        alone = choose(
            jnp.asarray(logits[index : index + 1]),
            jnp.asarray(position[index : index + 1]),
            jnp.zeros(1, jnp.int32),
            pack_sampling([rows[row[index]]], 1),
        )
        assert alone.tolist() == [together[index]]


def test_all_bits_of_the_seed_and_of_the_position_matter() -> None:
    seeds = [12345 ^ (1 << bit) for bit in range(64)]
    packed = pack_sampling([Sampling(seed=seed) for seed in seeds], CHOICES)
    lines = np.asarray(noise(packed.seed, jnp.full(CHOICES, 7, jnp.int32)))
    assert len({line.tobytes() for line in lines}) == CHOICES
    same_seed = jnp.tile(packed.seed[:1], (CHOICES, 1))
    positions = np.array([1 << bit for bit in range(31)] + list(range(33)), np.int32)
    lines = np.asarray(noise(same_seed, jnp.asarray(positions)))
    assert len({line.tobytes() for line in lines}) == len(set(positions.tolist()))


SMALL_VOCAB, DRAWS = 8, 4096
LINE = np.array([1.0, 0.5, 0.5, 0.0, -0.5, -1.0, -2.0, 2.0], np.float32)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    live = expected > 0
    assert counts[~live].sum() == 0, "a token was drawn that the filters drop"
    return float((((counts - expected) ** 2)[live] / expected[live]).sum())


@pytest.mark.parametrize(
    "options",
    [
        Sampling(1.0),
        Sampling(0.6),
        Sampling(1.5, top_k=4),
        Sampling(1.0, top_p=0.8),
        Sampling(2.0, top_k=6, top_p=0.9, min_p=0.25),
    ],
)
@pytest.mark.parametrize("many_seeds", [False, True])
def test_frequencies_are_those_of_the_filtered_softmax(options: Sampling, many_seeds: bool) -> None:
    index = np.arange(DRAWS, dtype=np.int32)
    rows = [replace(options, seed=seed if many_seeds else 9) for seed in range(DRAWS)]
    choices = choose(
        jnp.asarray(np.tile(LINE, (DRAWS, 1))),
        jnp.asarray(np.full(DRAWS, 33, np.int32) if many_seeds else index),
        jnp.asarray(index),
        pack_sampling(rows, DRAWS),
    )
    counts = np.bincount(np.asarray(choices), minlength=SMALL_VOCAB)

    def expected(temperature: float) -> np.ndarray:
        kept = reference_kept(LINE, options)
        weights = np.where(kept, np.exp(LINE.astype(np.float64) / temperature), 0.0)
        frequencies: np.ndarray = DRAWS * weights / weights.sum()
        return frequencies

    # For 7 degrees of freedom, 30 is exceeded once in ten thousand times.
    assert chi_square(counts, expected(options.temperature)) < 30
    # The test would see a temperature 30 % off.
    assert chi_square(counts, expected(1.3 * options.temperature)) > 30


ROWS, MAX_DRAFTS = 4, 3
count = jax.jit(partial(count_accepted, max_drafts=MAX_DRAFTS))


@pytest.mark.parametrize("seed", range(30))
def test_acceptance_counts_as_a_loop_does(seed: int) -> None:
    rng = random.Random(seed)
    choices = [rng.randrange(3) for _ in range(16)]
    following = [rng.randrange(3) for _ in range(16)]
    drafted = [rng.randint(0, MAX_DRAFTS) for _ in range(ROWS)]
    # The last row ends with the array, so that reading on would leave it.
    first = [16 - sum(drafted[i:]) - (ROWS - i) for i in range(ROWS)]
    accepted, bonus = count(
        *(
            jnp.asarray(np.array(values, np.int32))
            for values in (choices, following, first, drafted)
        )
    )
    for row in range(ROWS):
        right = 0
        while right < drafted[row] and choices[first[row] + right] == following[first[row] + right]:
            right += 1
        assert accepted[row] == right
        assert bonus[row] == choices[first[row] + right]


def test_log_probabilities() -> None:
    logits = np.random.default_rng(6).normal(0, 3, (CHOICES, VOCAB)).astype(np.float32)
    choices = np.random.default_rng(7).integers(0, VOCAB, CHOICES).astype(np.int32)
    result = log_probs(jnp.asarray(logits), jnp.asarray(choices), jnp.asarray(True))
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(result.chosen, expected[np.arange(CHOICES), choices], atol=1e-5)
    order = np.argsort(-expected, axis=-1)[:, :20]
    np.testing.assert_array_equal(result.top_ids, order)
    np.testing.assert_allclose(result.top, np.take_along_axis(expected, order, 1), atol=1e-5)


def test_unwanted_log_probabilities_are_zeros() -> None:
    logits = jnp.asarray(random_logits(np.random.default_rng(8)))
    result = log_probs(logits, jnp.zeros(CHOICES, jnp.int32), jnp.asarray(False))
    assert all(not np.asarray(part).any() for part in result)
    assert result.top.shape == result.top_ids.shape == (CHOICES, 20)


def test_a_vocabulary_smaller_than_the_alternatives() -> None:
    logits = jnp.asarray(np.tile(LINE, (2, 1)))
    result = log_probs(logits, jnp.zeros(2, jnp.int32), jnp.asarray(True))
    assert result.top.shape == (2, SMALL_VOCAB)
    assert math.isclose(float(jnp.exp(result.top[0]).sum()), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize("narrow", [Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.5)])
def test_filters_of_some_change_nothing_for_others(narrow: Sampling) -> None:
    logits = jnp.asarray(random_logits(np.random.default_rng(4)))
    free = [Sampling(1.0), Sampling(1.0, min_p=0.05)] * (CHOICES // 2)
    alone = np.asarray(filtered(logits, pack_sampling(free, CHOICES)))
    beside = np.asarray(filtered(logits, pack_sampling([*free[:-1], narrow], CHOICES)))
    np.testing.assert_array_equal(alone[:-1], beside[:-1])
    assert np.isfinite(alone[0::2]).all()
    assert not np.isfinite(beside[-1]).all()
