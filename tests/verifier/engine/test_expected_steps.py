"""What is expected of steps with drafts that may end early, against counting what may happen."""

import itertools
import math
import random

import numpy as np
import pytest

from blockdraft_verifier.engine.acceptance import AcceptanceEstimate, expected_drafts
from blockdraft_verifier.engine.expected_steps import expected_steps

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


def counted(estimates: list[AcceptanceEstimate], length: int) -> list[tuple[int, float]]:
    """Return all numbers of drafted tokens together, and how likely each combination is."""
    each = [list(enumerate(chances(estimate, length))) for estimate in estimates]
    return [
        (sum(count for count, _ in drafts), math.prod(chance for _, chance in drafts))
        for drafts in itertools.product(*each)
    ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_mean_and_variance_of_what_is_drafted(rows: int, seed: int) -> None:
    rng = random.Random(seed)
    estimates = [random_estimate(rng, 4) for _ in range(rows)]
    drafts = expected_drafts(estimates, 4)
    for length in range(5):
        found = counted(estimates, length)
        mean = sum(chance * count for count, chance in found)
        variance = sum(chance * (count - mean) ** 2 for count, chance in found)
        assert drafts.drafted[length] == pytest.approx(mean)
        assert drafts.variance[length] == pytest.approx(variance, abs=1e-9)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("rows", "tolerance"), [(1, 1e-9), (2, 0.12), (4, 0.06)])
def test_seconds_are_averaged_over_the_sizes_that_may_be_needed(
    rows: int, tolerance: float, seed: int
) -> None:
    rng = random.Random(seed)
    estimates = [random_estimate(rng, 4) for _ in range(rows)]
    sizes = [size for size in SIZES if size >= rows]
    steps = expected_steps(estimates, 4, sizes, seconds_of, lambda rows, length: 0.5 * length)
    for length in range(5):
        expected = sum(
            chance * seconds_of(rows, rows + count) for count, chance in counted(estimates, length)
        )
        assert steps.verify_seconds[length] == pytest.approx(expected, rel=tolerance)
    passes = expected_drafts(estimates, 4).passes
    assert steps.draft_seconds == pytest.approx(0.5 * passes)
    assert steps.seconds == pytest.approx(steps.verify_seconds + steps.draft_seconds)
    assert steps.gains == pytest.approx(rows + expected_drafts(estimates, 4).accepted)


def test_whole_drafts_take_what_their_size_takes() -> None:
    estimates = [AcceptanceEstimate([0.1, 0.2, 0.3, 0.4]) for _ in range(3)]
    steps = expected_steps(estimates, 4, (4, 8, 16, 32), seconds_of, lambda rows, length: 0.0)
    assert steps.tokens == pytest.approx(np.array([3.0, 6.0, 9.0, 12.0, 15.0]))
    assert steps.verify_seconds.tolist() == [5.0, 9.0, 17.0, 17.0, 17.0]


def test_drafts_that_may_need_several_steps_take_what_their_mean_does() -> None:
    estimates = [AcceptanceEstimate([0.5] * 4, going_on=[1.0, 0.5]) for _ in range(8)]
    steps = expected_steps(estimates, 4, (16, 32), seconds_of, lambda rows, length: 0.0)
    # Half of the drafts have four tokens, the others one: 8 + 20 of at most 40.
    assert steps.tokens[4] == pytest.approx(28.0)
    assert steps.verify_seconds[4] == seconds_of(8, 28)
