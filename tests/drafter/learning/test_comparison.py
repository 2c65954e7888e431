"""Whether better versions are promoted, worse ones rolled back, and hardly ever others."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft_drafter.learning.comparison import (
    Comparison,
    SequenceGain,
    acceptance_length,
    allowed_error,
    compare,
)
from blockdraft_drafter.learning.probation import (
    FIRST_EVALUATION,
    MIN_SEQUENCES,
    WINDOW,
    Probation,
)

ERROR = 0.05


def sequences(
    noise: np.random.Generator, acceptance: float, count: int, spread: float = 0.0
) -> list[SequenceGain]:
    """Sequences of which each has an acceptance rate of its own around the mean.

    Held-out sequences have none: both versions are replayed on the same text.
    """
    own = np.clip(noise.normal(acceptance, spread, count), 0.02, 0.95)
    steps = noise.integers(4, 60, count)
    # The geometric distribution counts the first rejection too: the target's own token.
    tokens = np.minimum(noise.geometric(1 - own[:, None], (count, 60)), 8)
    tokens[np.arange(60) >= steps[:, None]] = 0
    return [
        SequenceGain(int(all_of), int(n)) for all_of, n in zip(tokens.sum(1), steps, strict=True)
    ]


def served(noise: np.random.Generator, acceptance: float, count: int) -> list[SequenceGain]:
    """Sequences of a service, whose texts differ."""
    return sequences(noise, acceptance, count, spread=0.15)


def promoted(comparison: Comparison, evaluation: int) -> bool:
    return comparison.luck <= allowed_error(evaluation, ERROR)


def abandoned(comparison: Comparison, evaluation: int) -> bool:
    return comparison.bad_luck <= allowed_error(evaluation, ERROR)


@given(st.lists(st.integers(-6, 6), max_size=8), st.sampled_from([1, -1]))
def test_the_chance_is_the_share_of_all_tosses(differences: list[int], sign: int) -> None:
    # Their sizes add up to a power of two, so that none is rounded.
    differences = [*differences, sign * (64 - sum(map(abs, differences)))]
    flips = itertools.product((1, -1), repeat=len(differences))
    sums = [sum(f * d for f, d in zip(flip, differences, strict=True)) for flip in flips]
    chance = sum(total >= sum(differences) for total in sums) / len(sums)
    gains = [SequenceGain(100 + difference, 1) for difference in differences]
    assert compare(gains, 100.0).luck == pytest.approx(chance)


def test_the_errors_of_all_evaluations_add_up_to_the_one_that_is_stated() -> None:
    errors = [allowed_error(evaluation, ERROR) for evaluation in range(1, 100_000)]
    assert sum(errors) == pytest.approx(ERROR, rel=1e-4)


def test_equal_drafters_are_promoted_at_most_at_the_stated_rate() -> None:
    noise, runs = np.random.default_rng(5), 150
    lucky = sum(
        any(
            promoted(compare(sequences(noise, 0.5, 48), sequences(noise, 0.5, 48)), evaluation)
            for evaluation in range(1, 13)
        )
        for _ in range(runs)
    )
    # Three standard deviations above the rate.
    assert lucky <= runs * ERROR + 3 * math.sqrt(runs * ERROR * (1 - ERROR))


def test_a_better_drafter_is_promoted_at_once_and_a_worse_one_abandoned() -> None:
    noise = np.random.default_rng(6)
    for _ in range(20):
        comparison = compare(sequences(noise, 0.65, 64), sequences(noise, 0.5, 64))
        assert promoted(comparison, 1)
        assert not abandoned(comparison, 1)
        assert abandoned(compare(sequences(noise, 0.5, 64), sequences(noise, 0.65, 64)), 1)


def test_where_nothing_serves_a_stated_tau_must_be_surpassed() -> None:
    good = [SequenceGain(30, 20)] * 20
    assert promoted(compare(good, 1.2), 1)
    assert compare(good, 1.6).luck == 1
    assert compare(good, 1.2).gain == pytest.approx(0.25)


def sequences_until_rolled_back(old: list[SequenceGain], new: list[SequenceGain]) -> int | None:
    probation = Probation(old)
    for count, gain in enumerate(new, 1):
        probation.add(gain)
        if probation.evaluate() is not None:
            return count
    assert probation.over
    return None


@pytest.mark.parametrize(
    ("old", "new", "earliest", "rolled_back"),
    # As good, a little worse, much worse; better.
    [
        (0.5, 0.5, 0, (0, 2)),
        (0.5, 0.44, 0, (38, 40)),
        (0.55, 0.3, 64, (40, 40)),
        (0.45, 0.55, 0, (0, 0)),
    ],
)
def test_a_worse_version_is_rolled_back_and_others_stay(
    old: float, new: float, earliest: int, rolled_back: tuple[int, int]
) -> None:
    noise = np.random.default_rng(1)
    counts = [
        sequences_until_rolled_back(served(noise, old, WINDOW), served(noise, new, WINDOW))
        for _ in range(40)
    ]
    least, most = rolled_back
    assert least <= sum(count is not None for count in counts) <= most
    if earliest:
        assert counts == [FIRST_EVALUATION] * 40


def test_nothing_is_concluded_from_too_little() -> None:
    probation = Probation([SequenceGain(30, 10)] * (MIN_SEQUENCES - 1))
    assert probation.over
    for _ in range(WINDOW):
        probation.add(SequenceGain(10, 10))
        assert probation.evaluate() is None
    assert acceptance_length(probation.new) == 1.0


# Who floods the service to teach the drafter nonsense: what the test and the service make of it. Of
# honest text a drafter has half of its tokens right and one that learned nonsense three in ten; of
# nonsense it is two in ten and eight. No completion depends on any of this, only how fast it comes.
GOOD, BAD = (0.5, 0.2), (0.3, 0.8)
HELD_OUT = 64


def held_out(
    noise: np.random.Generator, chances: tuple[float, float], nonsense: int
) -> list[SequenceGain]:
    """Return gains on held-out prompts, some of which are nonsense."""
    honest = sequences(noise, chances[0], HELD_OUT - nonsense)
    return honest + sequences(noise, chances[1], nonsense)


def test_nonsense_that_is_asked_again_and_again_is_not_promoted() -> None:
    noise = np.random.default_rng(1)
    for _ in range(20):
        # However often a prompt is asked, it is held out once.
        comparison = compare(held_out(noise, BAD, 1), held_out(noise, GOOD, 1))
        assert abandoned(comparison, 1)
        # When the nonsense is over, a better one takes its place.
        assert promoted(compare(held_out(noise, GOOD, 1), held_out(noise, BAD, 1)), 1)


def test_nonsense_that_was_held_out_too_goes_back_when_the_flood_ends() -> None:
    noise = np.random.default_rng(2)
    # So many different prompts move the mean: it is promoted, and faster for who asked them.
    assert promoted(compare(held_out(noise, BAD, 32), held_out(noise, GOOD, 32)), 1)
    for _ in range(20):
        flood = served(noise, GOOD[0], WINDOW // 2) + served(noise, GOOD[1], WINDOW // 2)
        flood = [flood[place] for place in noise.permutation(WINDOW)]
        assert sequences_until_rolled_back(flood, served(noise, BAD[0], WINDOW)) is not None
