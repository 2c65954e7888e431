"""What is expected of steps with drafts that may end early, against counting what may happen."""

import itertools
import random

import pytest

from blockdraft_verifier.engine.acceptance import AcceptanceEstimate, expected_drafts
from blockdraft_verifier.engine.cost_model import expected_steps

SIZES = (1, 2, 4, 8, 16, 32)


def seconds_of(rows: int, tokens: int) -> float:
    """Return the seconds of a padded step, and of several where it needs more than one."""
    whole, rest = divmod(tokens, SIZES[-1])
    padded = next((size for size in SIZES if size >= rest), 0) if rest else 0
    return whole * (1.0 + SIZES[-1]) + (1.0 + padded if padded else 0.0)


def random_estimate(rng: random.Random, positions: int) -> AcceptanceEstimate:
    """Return an estimate of drafts that have a first token and may end after each."""
    going_on = [1.0, *(rng.choice([0.2, 0.5, 0.8, 1.0]) for _ in range(positions - 1))]
    return AcceptanceEstimate([rng.random() for _ in range(positions)], going_on=going_on)


def chances(estimate: AcceptanceEstimate, length: int) -> list[float]:
    """Return how likely a draft of at most `length` tokens has 0, 1, ... of them."""
    lasting = [1.0, *estimate.lasting(length), 0.0]
    return [after - before for after, before in itertools.pairwise(lasting)]


@pytest.mark.parametrize("seed", range(8))
def test_a_lone_draft_that_ends_early_is_verified_in_a_smaller_step(seed: int) -> None:
    estimate = random_estimate(random.Random(seed), 6)
    steps = expected_steps([estimate], 6, seconds_of, lambda rows, length: 0.5 * length)
    for length in range(7):
        likely = chances(estimate, length)
        expected = sum(chance * seconds_of(1, 1 + count) for count, chance in enumerate(likely))
        assert steps.verify_seconds[length] == pytest.approx(expected)
    drafts = expected_drafts([estimate], 6)
    assert steps.draft_seconds == pytest.approx(0.5 * drafts.passes)
    assert steps.seconds == pytest.approx(steps.verify_seconds + steps.draft_seconds)
    assert steps.gains == pytest.approx(1.0 + drafts.accepted)
    assert steps.tokens == pytest.approx(1.0 + drafts.drafted)


@pytest.mark.parametrize("rows", [1, 3])
def test_whole_drafts_take_what_their_size_takes(rows: int) -> None:
    estimates = [AcceptanceEstimate([0.1, 0.2, 0.3, 0.4]) for _ in range(rows)]
    steps = expected_steps(estimates, 4, seconds_of, lambda rows, length: 0.0)
    lengths = range(5)
    assert steps.tokens.tolist() == [rows * (1 + length) for length in lengths]
    expected = [seconds_of(rows, rows * (1 + length)) for length in lengths]
    assert steps.verify_seconds == pytest.approx(expected)


def test_drafts_of_several_sequences_take_what_their_mean_does() -> None:
    estimates = [AcceptanceEstimate([0.5] * 4, going_on=[1.0, 0.5]) for _ in range(8)]
    steps = expected_steps(estimates, 4, seconds_of, lambda rows, length: 0.0)
    # Half of the drafts have four tokens, the others one: 8 + 20 of at most 40.
    assert steps.tokens[4] == pytest.approx(28.0)
    assert steps.verify_seconds[4] == seconds_of(8, 28)
