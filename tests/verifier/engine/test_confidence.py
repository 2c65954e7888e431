"""What drafts say of themselves, and what is made of it."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft_verifier.engine.acceptance import AcceptanceEstimate
from blockdraft_verifier.engine.confidence import (
    LEAST_DRAFTS,
    RECENT_DRAFTS,
    Confidence,
    claims,
    log_chances,
)

CHANCES = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=15)


@given(CHANCES)
def test_chances_and_survival_are_each_others_inverse(chances: list[float]) -> None:
    survival = np.cumprod(chances).tolist()
    said = log_chances(survival)
    assert np.exp(said) == pytest.approx(chances)
    assert claims(said) == pytest.approx(survival)


def test_what_never_happens_is_said_without_an_error() -> None:
    assert claims(log_chances([0.5, 0.0, 0.0])) == pytest.approx([0.5, 0.0, 0.0])


@pytest.mark.parametrize("truth", [0.0, 0.4, 1.0])
def test_claims_are_corrected_by_what_was_accepted(truth: float) -> None:
    rng, confidence = random.Random(0), Confidence()
    assert confidence.survival([math.log(0.9)]) == pytest.approx([0.9])
    for _ in range(3000):
        chance = rng.uniform(0.2, 0.9)
        confidence.learn([math.log(chance)], int(rng.random() < truth * chance))
    assert confidence.truth == pytest.approx(truth, abs=0.12)
    [corrected] = confidence.survival([math.log(0.9)])
    assert corrected == pytest.approx(0.9 * confidence.truth)


def test_nothing_is_more_than_certain() -> None:
    confidence = Confidence()
    for _ in range(100):
        confidence.learn([math.log(0.5)], 1)
    assert confidence.truth > 1
    assert confidence.survival([0.0, 0.0]) == [1.0, 1.0]


def seen(drafts: list[list[float]]) -> Confidence:
    confidence = Confidence()
    for draft in drafts:
        confidence.see([math.log(chance) for chance in draft])
    return confidence


def test_few_drafts_tell_nothing_of_others() -> None:
    assert seen([[0.5]] * (LEAST_DRAFTS - 1)).spread(2, np.array([0.5])) is None
    assert seen([[0.5]] * LEAST_DRAFTS).spread(2, np.array([0.5])) is not None


def test_drafts_that_were_alike_will_be() -> None:
    spread = seen([[0.8, 0.5]] * LEAST_DRAFTS).spread(3, np.array([0.6, 0.3]))
    assert spread == pytest.approx([0.6, 0.6, 0.6, 0.3, 0.3, 0.3])


def test_drafts_that_differed_will_differ() -> None:
    # Half of the drafts are sure of two tokens, the others of none.
    confidence = seen([[1.0, 1.0], [0.2, 0.1]] * LEAST_DRAFTS)
    spread = confidence.spread(2, np.array([0.5, 0.4]))
    assert spread is not None
    # Averages of 0.6 and 0.51 were claimed, so that of each 5/6 and 40/51 are expected.
    assert spread == pytest.approx([5 / 6, 40 / 51, 1 / 6, 0.02 * 40 / 51])


def test_only_recent_drafts_count() -> None:
    confidence = seen([[0.1]] * RECENT_DRAFTS + [[0.9], [0.3]] * (RECENT_DRAFTS // 2))
    assert confidence.spread(2, np.array([0.6])) == pytest.approx([0.9, 0.3])


@pytest.mark.parametrize("seed", range(10))
def test_a_spread_falls_and_has_the_average_that_is_known(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drafts = [rng.uniform(0.3, 0.7, rng.integers(1, 8)).tolist() for _ in range(RECENT_DRAFTS)]
    alive = np.cumprod(rng.uniform(0.3, 0.5, 7))
    rows = RECENT_DRAFTS // int(rng.choice([1, 2, 4]))
    spread = seen(drafts).spread(rows, alive)
    assert spread is not None
    assert len(spread) == 7 * rows
    assert (np.diff(spread) <= 0).all()
    assert 0 <= spread[-1] <= spread[0] <= 1
    assert spread.sum() / rows == pytest.approx(alive.sum(), rel=0.05)


def test_longer_drafts_than_were_ever_made_are_expected_to_be_alike_there() -> None:
    spread = seen([[0.5]] * LEAST_DRAFTS).spread(1, np.array([0.5, 0.25]))
    assert spread == pytest.approx([0.5, 0.25])


def test_leaving_unlikely_tokens_out_does_not_make_a_position_seem_better() -> None:
    """Half of all tokens are sure and half are not; only the sure ones are verified."""
    rng = random.Random(0)
    fair, naive = AcceptanceEstimate(), AcceptanceEstimate()
    found = []
    for step in range(4000):
        chance = rng.choice([0.9, 0.2])
        verified, right = int(chance > 0.5), rng.random() < chance
        fair.update(verified, int(verified and right), None if verified else chance)
        if verified:
            naive.update(1, int(right))
        if step > 500:
            found.append(fair.by_position[0])
    assert np.mean(found) == pytest.approx(0.55, abs=0.02)
    assert naive.by_position[0] > 0.75


def test_what_was_left_out_behind_a_wrong_token_says_nothing() -> None:
    estimate = AcceptanceEstimate([0.5, 0.5, 0.5], [50, 50, 50])
    estimate.update(2, 1, 0.1)
    assert estimate.by_position[2] == 0.5
    estimate.update(2, 2, 0.1)
    assert estimate.by_position[2] < 0.5
