"""Whether candidates are promoted that are better, and hardly ever others."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafter.learning.test_service_tau import sequences as served

from blockdraft_drafter.learning.service_tau import WINDOW, Ended, Probation
from blockdraft_training.online import promotion
from blockdraft_training.online.promotion import (
    Comparison,
    Verdict,
    allowed_error,
    compare,
    decide,
    next_evaluation,
    sign_flip_chance,
)

CONFIDENCE = 0.95


def sequences(generator: np.random.Generator, count: int, chance: float) -> list[Ended]:
    """Return what a drafter gains whose tokens are each right with some chance, up to 7."""
    found = []
    for _ in range(count):
        verifications = int(generator.integers(4, 40))
        accepted = np.minimum(generator.geometric(1 - chance, verifications) - 1, 7)
        found.append(Ended(int(accepted.sum()) + verifications, verifications))
    return found


def promoted_at(
    generator: np.random.Generator, ours: float, theirs: float, evaluations: int
) -> int:
    """Return the look at which a candidate is promoted, with new sequences each time; or 0."""
    for evaluation in range(1, evaluations + 1):
        comparison = compare(
            sequences(generator, 48, ours), sequences(generator, 48, theirs), seed=evaluation
        )
        verdict = decide(comparison, evaluation, confidence=CONFIDENCE, least_gain=0.0)
        if verdict is Verdict.PROMOTE:
            return evaluation
    return 0


@pytest.fixture
def few_tosses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "_TOSSES", 2_000)
    monkeypatch.setattr(promotion, "_AT_ONCE", 2_000)


@pytest.mark.usefixtures("few_tosses")
def test_equal_drafters_are_promoted_at_most_at_the_stated_rate() -> None:
    generator = np.random.default_rng(5)
    runs = 150
    promoted = sum(promoted_at(generator, 0.5, 0.5, 12) > 0 for _ in range(runs))
    # Three standard deviations above the rate.
    allowed = 1 - CONFIDENCE
    assert promoted <= runs * allowed + 3 * math.sqrt(runs * allowed * (1 - allowed))


@pytest.mark.usefixtures("few_tosses")
def test_a_better_drafter_soon_is() -> None:
    generator = np.random.default_rng(6)
    evaluations = [promoted_at(generator, 0.6, 0.5, 12) for _ in range(20)]
    assert all(evaluations)
    assert np.median(evaluations) <= 2


def test_the_errors_of_all_evaluations_add_up_to_the_one_that_is_stated() -> None:
    errors = [allowed_error(evaluation, CONFIDENCE) for evaluation in range(1, 100_000)]
    assert sum(errors) == pytest.approx(1 - CONFIDENCE, rel=1e-4)
    assert all(later < earlier for earlier, later in pairwise(errors))


def test_evaluations_are_further_and_further_apart() -> None:
    steps, step = [], 50
    while step < 100_000:
        steps.append(step)
        step = next_evaluation(step, 50)
    # So few that a gain which tossing can show at all is still enough for the last one.
    assert allowed_error(len(steps), CONFIDENCE) > 2 / promotion._TOSSES
    gaps = np.diff(steps)
    assert (np.diff(gaps) >= 0).all()
    assert gaps[0] == 50


@settings(max_examples=20)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=40))
def test_the_chance_is_one_and_none_too_many(differences: list[float]) -> None:
    array = np.array(differences)
    up, down = sign_flip_chance(array, 0), sign_flip_chance(-array, 0)
    assert 0 < up <= 1
    assert up + down >= 1 - 0.02  # every toss counts for one side, ties for both
    if not array.any():
        assert up == 1


def test_small_gains_and_losses() -> None:
    def verdict(candidate: float, luck: float, bad_luck: float) -> Verdict:
        comparison = Comparison(40, candidate, 2.0, luck, bad_luck)
        return decide(comparison, 1, confidence=CONFIDENCE, least_gain=0.02)

    assert verdict(2.2, 0.001, 1.0) is Verdict.PROMOTE
    assert verdict(2.03, 0.001, 1.0) is Verdict.GO_ON
    assert verdict(2.2, 0.03, 0.97) is Verdict.GO_ON
    assert verdict(1.8, 1.0, 0.001) is Verdict.START_OVER


def test_where_nothing_serves_a_stated_tau_must_be_surpassed() -> None:
    good = [Ended(30, 20)] * 20
    assert compare(good, 1.2).luck < 0.001
    assert compare(good, 1.6).luck == 1
    assert compare(good, 1.2).current == 1.2


# Who floods the service to teach the drafter nonsense: what the gate and the service make of it. Of
# honest text a drafter has half of its tokens right and one that learned nonsense three in ten; of
# nonsense it is two in ten and eight. No completion depends on any of this, only how fast it comes.
GOOD_HONEST, GOOD_NONSENSE = 0.5, 0.2
BAD_HONEST, BAD_NONSENSE = 0.3, 0.8
HELD_OUT, EVALUATIONS = 64, 6


def verdicts(
    noise: np.random.Generator,
    candidate: tuple[float, float],
    current: tuple[float, float],
    of: int,
) -> list[Verdict]:
    """Return what follows from looks at held-out prompts, `of` of which are nonsense."""

    def gains(chances: tuple[float, float]) -> Sequence[Ended]:
        honest, nonsense = chances
        return [*sequences(noise, HELD_OUT - of, honest), *sequences(noise, of, nonsense)]

    return [
        decide(
            compare(gains(candidate), gains(current), seed=evaluation),
            evaluation,
            confidence=CONFIDENCE,
            least_gain=0.02,
        )
        for evaluation in range(1, EVALUATIONS + 1)
    ]


def in_service(
    noise: np.random.Generator, chances: tuple[float, float], nonsense: float
) -> list[Ended]:
    """Return sequences in random order, a share of which are nonsense."""
    count = round(WINDOW * nonsense)
    ended = [*served(noise, chances[0], WINDOW - count), *served(noise, chances[1], count)]
    return [ended[place] for place in noise.permutation(WINDOW)]


GOOD, BAD = (GOOD_HONEST, GOOD_NONSENSE), (BAD_HONEST, BAD_NONSENSE)


@pytest.mark.usefixtures("few_tosses")
def test_nonsense_that_is_asked_again_and_again_is_not_promoted() -> None:
    noise = np.random.default_rng(1)
    for _ in range(20):
        # However often a prompt is asked, it is held out once.
        found = verdicts(noise, BAD, GOOD, of=1)
        assert Verdict.PROMOTE not in found
        assert Verdict.START_OVER in found


@pytest.mark.usefixtures("few_tosses")
def test_nonsense_that_was_held_out_too_goes_back_when_the_flood_ends() -> None:
    noise = np.random.default_rng(2)
    # So many different prompts move the mean: it is promoted, and faster for who asked them.
    assert Verdict.PROMOTE in verdicts(noise, BAD, GOOD, of=HELD_OUT // 2)
    for _ in range(20):
        probation = Probation(tuple(in_service(noise, GOOD, nonsense=0.5)))
        assert any(probation.add(ended) is not None for ended in in_service(noise, BAD, 0.0))


@pytest.mark.usefixtures("few_tosses")
def test_what_nonsense_promoted_is_surpassed_when_honest_prompts_are_held_out() -> None:
    noise = np.random.default_rng(3)
    assert all(verdicts(noise, GOOD, BAD, of=1)[0] is Verdict.PROMOTE for _ in range(20))
