"""What is learned of matches, by their length."""

import random

import pytest

from blockdraft_verifier.engine.acceptance import LEARNING_RATE, PRIOR_WEIGHT, SETTLED_TRIALS
from blockdraft_verifier.engine.lookups import PRIOR, MatchAcceptance
from blockdraft_verifier.lookup import LONGEST_MATCH, Outcome


def test_a_match_gets_longer_with_each_token() -> None:
    fresh = MatchAcceptance()
    # Matches of 2, 3, 4 and 5 tokens.
    expected = [PRIOR[1], PRIOR[1] * PRIOR[2], PRIOR[1] * PRIOR[2] ** 2]
    expected.append(expected[-1] * PRIOR[3])
    assert fresh.survival(2, 4) == pytest.approx(expected)
    assert fresh.survival(LONGEST_MATCH, 2) == pytest.approx([PRIOR[-1], PRIOR[-1] ** 2])
    assert fresh.survival(2, 0) == []


def test_rates_are_learned_by_length() -> None:
    rng = random.Random(0)
    found = MatchAcceptance()
    for _ in range(2000):
        right = rng.random() < 0.9
        found.update(Outcome(20, int(right), missed=not right))
        found.update(Outcome(2, 0, missed=rng.random() < 0.999))
    assert found.survival(20, 1)[0] == pytest.approx(0.9, abs=0.15)
    assert found.survival(2, 1)[0] < 0.05
    assert found.survival(3, 1)[0] == PRIOR[2]


def test_a_run_teaches_all_lengths_it_passed() -> None:
    found = MatchAcceptance()
    found.update(Outcome(2, right=3, missed=True))
    two, four, five = (found.survival(length, 1)[0] for length in (2, 4, 5))
    # Right after 2, 3 and 4 tokens, wrong after 5.
    assert two > PRIOR[1]
    assert four > PRIOR[2]
    assert five < PRIOR[3]


def test_a_successor_starts_there_and_learns_alone() -> None:
    first = MatchAcceptance()
    for _ in range(30):
        first.update(Outcome(2, right=1, missed=False))
    heir = first.successor()
    assert heir.survival(2, 1) == first.survival(2, 1)
    before = first.survival(2, 1)
    heir.update(Outcome(2, right=0, missed=True))
    assert first.survival(2, 1) == before
    # The first trial of its own counts more than another one of the many before.
    assert heir.survival(2, 1)[0] < 0.85 * before[0]


def test_learning_at_once_is_learning_one_by_one() -> None:
    rng = random.Random(0)
    at_once, one_by_one = MatchAcceptance(), MatchAcceptance()
    for _ in range(40):
        length, right = rng.randint(2, LONGEST_MATCH), rng.randint(0, 15)
        missed = rng.random() < 0.5
        at_once.update(Outcome(length, right, missed))
        for offset in range(right):
            reached = min(length + offset, LONGEST_MATCH)
            one_by_one.update(Outcome(reached, 1, missed=False))
        if missed:
            one_by_one.update(Outcome(min(length + right, LONGEST_MATCH), 0, missed=True))
        for each in (2, 3, 5, 9, 17, LONGEST_MATCH):
            assert at_once.survival(each, 9) == pytest.approx(one_by_one.survival(each, 9))


def test_a_rate_settles_as_an_average_of_the_last_trials() -> None:
    found = MatchAcceptance()
    seen = [random.Random(1).random() < 0.5 for _ in range(60)]
    rate = PRIOR[1]
    for trial, right in enumerate(seen, start=1):
        found.update(Outcome(2, int(right), missed=not right))
        weight = 1 / (PRIOR_WEIGHT + trial) if trial < SETTLED_TRIALS else LEARNING_RATE
        rate += weight * (right - rate)
    assert found.survival(2, 1) == pytest.approx([rate])
