"""How long a drafter that is late is left alone."""

import pytest

from blockdraft_runtime.channel import Backoff
from blockdraft_verifier.drafting.patience import LEAVING_ALONE, Patience


class HandClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def patience(clock: HandClock) -> Patience:
    return Patience(clock, Backoff(LEAVING_ALONE, draw=lambda: 1.0))


def pause(patience: Patience, clock: HandClock) -> float:
    """Return for how long the drafter is not asked after a missed deadline."""
    patience.missed()
    started, step = clock.now, LEAVING_ALONE.initial_seconds / 16
    while not patience.asks:
        clock.now += step
    return clock.now - started


def test_a_drafter_is_trusted_at_first(patience: Patience) -> None:
    assert patience.asks


def test_pauses_double_up_to_the_longest(patience: Patience, clock: HandClock) -> None:
    pauses = [pause(patience, clock) for _ in range(12)]
    first, longest = LEAVING_ALONE.initial_seconds, LEAVING_ALONE.max_seconds
    wanted = [min(first * 2**i, longest) for i in range(12)]
    assert pauses == pytest.approx(wanted, abs=first / 8)
    assert wanted[-1] == longest


def test_proposals_in_time_win_all_trust_back(patience: Patience, clock: HandClock) -> None:
    first = pause(patience, clock)
    pause(patience, clock)
    patience.missed()
    patience.kept()
    assert patience.asks
    assert pause(patience, clock) == pytest.approx(first)
