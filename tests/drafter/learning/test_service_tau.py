"""Going back by itself: how often it errs, and how soon it notices."""

import numpy as np

from blockdraft_drafter.learning.service_tau import (
    FIRST_EVALUATION,
    MIN_SEQUENCES,
    WINDOW,
    Ended,
    Probation,
    accepted_of,
    confidence_worse,
    estimate,
)


def sequences(noise: np.random.Generator, acceptance: float, count: int) -> list[Ended]:
    """Sequences whose texts differ: each has an acceptance rate of its own around the mean."""
    own = np.clip(noise.normal(acceptance, 0.15, count), 0.02, 0.95)
    steps = noise.integers(4, 60, count)
    # The geometric distribution counts the first rejection too: the target's own token.
    gained = np.minimum(noise.geometric(1 - own[:, None], (count, 60)), 8)
    gained[np.arange(60) >= steps[:, None]] = 0
    return [Ended(int(all_of), int(n)) for all_of, n in zip(gained.sum(1), steps, strict=True)]


def evaluations_until_sent_back(noise: np.random.Generator, old: float, new: float) -> int | None:
    probation = Probation(tuple(sequences(noise, old, WINDOW)))
    for count, ended in enumerate(sequences(noise, new, WINDOW), 1):
        if probation.add(ended) is not None:
            return count
    assert probation.over
    return None


def test_a_version_as_good_as_the_one_before_is_seldom_sent_back() -> None:
    noise = np.random.default_rng(1)
    alarms = sum(evaluations_until_sent_back(noise, 0.5, 0.5) is not None for _ in range(60))
    # If they came as often as they may, more than three would be a chance of 1 in 300.
    assert alarms <= 3


def test_a_version_that_is_better_stays() -> None:
    noise = np.random.default_rng(2)
    assert all(evaluations_until_sent_back(noise, 0.45, 0.55) is None for _ in range(20))


def test_a_version_that_is_much_worse_goes_at_the_first_evaluation() -> None:
    noise = np.random.default_rng(3)
    found = [evaluations_until_sent_back(noise, 0.55, 0.3) for _ in range(20)]
    assert found == [FIRST_EVALUATION] * 20


def test_a_version_that_is_a_little_worse_goes_in_the_end() -> None:
    noise = np.random.default_rng(4)
    found = [evaluations_until_sent_back(noise, 0.5, 0.44) for _ in range(20)]
    assert sum(each is not None for each in found) >= 18


def test_nothing_is_concluded_from_too_little() -> None:
    probation = Probation(tuple([Ended(30, 10)] * (MIN_SEQUENCES - 1)))
    assert probation.over
    assert all(probation.add(Ended(10, 10)) is None for _ in range(WINDOW))
    assert estimate([]) is None
    assert estimate([Ended(3, 1)]) is None
    assert estimate([Ended(0, 0), Ended(0, 0)]) is None


def test_sequences_without_spread_are_compared_by_their_means() -> None:
    low, high = estimate([Ended(10, 10)] * 5), estimate([Ended(20, 10)] * 5)
    assert low is not None
    assert high is not None
    assert confidence_worse(low, high) == 1.0
    assert confidence_worse(high, low) == 0.0
    assert confidence_worse(low, low) == 0.0


def test_what_was_accepted_is_read_off_the_next_request() -> None:
    # The anchor was followed by 5, 6 and 9; 9 is the next anchor and the target's own.
    assert accepted_of((5, 6, 7), (5, 6, 9), rows=3) == 2
    assert accepted_of((5, 6), (5, 6, 9), rows=3) == 2
    assert accepted_of((7,), (5,), rows=1) == 0
    # It came too late: the sequence went on by one token, which it had right.
    assert accepted_of((5, 6, 7), (5,), rows=1) is None
