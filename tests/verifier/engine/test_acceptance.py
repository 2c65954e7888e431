"""What is learned of drafts and of matches, and what is then expected, by hand and by counting."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft_verifier.engine.acceptance import (
    LEARNING_RATE,
    PRIOR_ACCEPTANCE,
    PRIOR_OF_MATCHES,
    PRIOR_WEIGHT,
    SETTLED_TRIALS,
    AcceptanceEstimate,
    MatchAcceptance,
    expected_drafts,
    expected_longest,
)
from blockdraft_verifier.prompt_lookup import LONGEST_MATCH, PredictionOutcome


def test_expected_accepted_is_a_sum_of_products() -> None:
    estimate = AcceptanceEstimate([0.5, 0.5, 0.25])
    wanted = [0.0, 0.5, 0.5 + 0.25, 0.5 + 0.25 + 0.0625]
    unknown = wanted[-1] + 0.0625 * PRIOR_ACCEPTANCE
    for most in range(4):
        assert expected_drafts([estimate], most).accepted.tolist() == wanted[: most + 1]
    assert expected_drafts([estimate], 4).accepted == pytest.approx([*wanted, unknown])


def test_what_is_accepted_of_several_sequences_adds_up() -> None:
    estimates = [
        AcceptanceEstimate([0.5, 0.5, 0.25]),
        AcceptanceEstimate(),
        AcceptanceEstimate([1.0]),
    ]
    alone = [expected_drafts([estimate], 5).accepted for estimate in estimates]
    assert expected_drafts(estimates, 5).accepted == pytest.approx(sum(alone))


def test_only_positions_put_to_the_test_teach() -> None:
    estimate = AcceptanceEstimate([0.5, 0.5, 0.5, 0.5])
    estimate.update(drafted=3, accepted=1)
    rate = 1 / (PRIOR_WEIGHT + 1)
    up, down = 0.5 + rate * 0.5, 0.5 - rate * 0.5
    assert estimate.by_position == pytest.approx([up, down, 0.5, 0.5])
    assert (estimate.trials, estimate.count) == ([1, 1, 0, 0], 1)
    estimate.update(drafted=5, accepted=5)
    assert estimate.by_position[3:] == pytest.approx(
        [up, PRIOR_ACCEPTANCE + rate * (1 - PRIOR_ACCEPTANCE)]
    )


def test_an_estimate_is_a_mean_before_it_forgets() -> None:
    estimate = AcceptanceEstimate([0.4])
    seen = [1, 0, 0, 1, 1, 1, 0, 1, 0, 1]
    for hit in seen:
        estimate.update(1, hit)
    mean = (PRIOR_WEIGHT * 0.4 + sum(seen)) / (PRIOR_WEIGHT + len(seen))
    assert estimate.by_position == pytest.approx([mean])
    for _ in range(100):
        estimate.update(1, 1)
    before = estimate.by_position[0]
    estimate.update(1, 0)
    assert estimate.by_position[0] == pytest.approx(before * (1 - LEARNING_RATE))
    # A successor believes the same and has seen nothing.
    heir = estimate.successor()
    assert (heir.by_position, heir.count) == (estimate.by_position, 0)
    heir.update(1, 1)
    assert heir.by_position != estimate.by_position


def test_where_a_draft_has_ended_no_token_is_gained() -> None:
    estimate = AcceptanceEstimate([0.5] * 4)
    rate = 1 / (PRIOR_WEIGHT + 1)
    up, down = 0.5 + rate * 0.5, 0.5 - rate * 0.5
    # All of it is right, but it was asked to go on.
    estimate.update(drafted=2, accepted=2, ended_early=True)
    assert estimate.by_position == pytest.approx([up, up, down, 0.5])
    assert estimate.going_on == pytest.approx([1.0, 1.0, 1.0 - rate])
    assert (estimate.trials, estimate.length_trials) == ([1, 1, 1, 0], [1, 1, 1])
    # Wrong before it ended: whether there would have been one is known, not whether it was right.
    estimate.update(drafted=2, accepted=0, ended_early=True)
    assert estimate.trials == [2, 1, 1, 0]
    assert estimate.length_trials == [2, 2, 2]
    # What was not asked for says nothing.
    before = list(estimate.going_on)
    estimate.update(drafted=2, accepted=2)
    assert estimate.going_on[2] == before[2]
    heir = estimate.successor()
    assert (heir.going_on, heir.length_trials) == (estimate.going_on, [])


def test_a_drafter_that_never_ends_early_is_expected_not_to() -> None:
    estimates = [AcceptanceEstimate() for _ in range(3)]
    for estimate in estimates:
        for _ in range(30):
            estimate.update(drafted=5, accepted=2)
    drafts = expected_drafts(estimates, 7)
    assert drafts.drafted.tolist() == [3.0 * length for length in range(8)]
    assert drafts.passes.tolist() == [float(length) for length in range(8)]


def test_nothing_is_expected_of_drafts_of_nothing() -> None:
    drafts = expected_drafts([AcceptanceEstimate(), AcceptanceEstimate()], 0)
    assert [*drafts.accepted, *drafts.drafted, *drafts.passes] == [0.0, 0.0, 0.0]


PRIOR = PRIOR_OF_MATCHES
chances = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), max_size=3)


@given(st.lists(chances, min_size=1, max_size=3), st.integers(3, 4))
def test_the_longest_of_several_drafts(going_on: list[list[float]], most: int) -> None:
    """All lengths that the drafts may have, one after another."""
    estimates = [AcceptanceEstimate(going_on=[1.0, *each]) for each in going_on]
    survivals = [estimate.draft_survival(most) for estimate in estimates]
    mean = 0.0
    for lengths in itertools.product(range(most + 1), repeat=len(survivals)):
        ends = [[1.0, *each, 0.0] for each in survivals]
        likely = [end[at] - end[at + 1] for end, at in zip(ends, lengths, strict=True)]
        mean += math.prod(likely) * max(lengths)
    assert expected_longest(survivals) == pytest.approx(mean)
    # As far as they were asked for, which may differ.
    shorter = [each[: index + 1] for index, each in enumerate(survivals)]
    filled = [each + [0.0] * (most - len(each)) for each in shorter]
    assert expected_longest(shorter) == pytest.approx(expected_longest(filled))
    drafts = expected_drafts(estimates, most)
    assert drafts.passes[most] == pytest.approx(mean)
    assert drafts.drafted[most] == pytest.approx(float(np.sum(survivals)))


@pytest.mark.parametrize("least", [0.0, 0.1, 0.4])
def test_what_is_expected_is_what_comes(least: float) -> None:
    """Tokens that say rightly how likely they are right, and drafts that end by that."""
    rng = random.Random(0)
    estimate = AcceptanceEstimate()
    most, accepted, drafted, expected = 6, [], [], []
    for step in range(6000):
        says = [rng.random() ** 0.5 for _ in range(most)]
        so_far = list(itertools.accumulate(says, lambda a, b: a * b))
        length = 1 + sum(each >= least for each in so_far[:-1])
        right = 0
        while right < length and rng.random() < says[right]:
            right += 1
        if step > 1000:
            accepted.append(right)
            drafted.append(length)
        if step > 1000 and step % 10 == 0:
            drafts = expected_drafts([estimate], most)
            expected.append((drafts.accepted[most], drafts.passes[most]))
        estimate.update(length, right, ended_early=length < most)
    seen = (np.mean(accepted), np.mean(drafted))
    assert np.mean(expected, axis=0) == pytest.approx(seen, rel=0.05)


def test_a_match_gets_longer_with_each_token() -> None:
    fresh = MatchAcceptance()
    # Matches of 2, 3, 4 and 5 tokens.
    expected = [
        PRIOR[1],
        PRIOR[1] * PRIOR[2],
        PRIOR[1] * PRIOR[2] ** 2,
    ]
    expected.append(expected[-1] * PRIOR[3])
    assert fresh.survival(2, 4) == pytest.approx(expected)
    assert fresh.survival(LONGEST_MATCH, 2) == pytest.approx([PRIOR[-1], PRIOR[-1] ** 2])
    assert fresh.survival(2, 0) == []


def test_a_run_teaches_all_lengths_it_passed() -> None:
    found = MatchAcceptance()
    found.update(PredictionOutcome(2, right=3, missed=True))
    two, four, five = (found.survival(length, 1)[0] for length in (2, 4, 5))
    # Right after 2, 3 and 4 tokens, wrong after 5.
    assert two > PRIOR[1]
    assert four > PRIOR[2]
    assert five < PRIOR[3]
    # Of no other lengths.
    assert found.survival(9, 1) == found.survival(16, 1) == [PRIOR[4]]


def test_a_successor_starts_there_and_learns_alone() -> None:
    first = MatchAcceptance()
    for _ in range(30):
        first.update(PredictionOutcome(2, right=1, missed=False))
    heir = first.successor()
    assert heir.survival(2, 1) == first.survival(2, 1)
    before = first.survival(2, 1)
    heir.update(PredictionOutcome(2, right=0, missed=True))
    assert first.survival(2, 1) == before
    # The first trial of its own counts more than another one of the many before.
    assert heir.survival(2, 1)[0] < 0.85 * before[0]


def test_a_rate_settles_as_an_average_of_the_last_trials() -> None:
    found = MatchAcceptance()
    seen = [random.Random(1).random() < 0.5 for _ in range(60)]
    rate = PRIOR[1]
    for trial, right in enumerate(seen, start=1):
        found.update(PredictionOutcome(2, int(right), missed=not right))
        weight = 1 / (PRIOR_WEIGHT + trial) if trial < SETTLED_TRIALS else LEARNING_RATE
        rate += weight * (right - rate)
    assert found.survival(2, 1) == pytest.approx([rate])
