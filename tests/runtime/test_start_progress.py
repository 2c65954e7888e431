"""The progress of a start in words, and what is left of it."""

import pytest

from blockdraft_runtime import start_progress
from blockdraft_runtime.start_progress import StartProgress


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(start_progress, "time", clock)
    return clock


def test_a_first_start_is_estimated_by_the_pace_of_its_stage(clock: Clock) -> None:
    progress = StartProgress()
    assert progress.words() == "starting"
    progress.report("loading weights", 1 << 29, 1 << 30)
    assert progress.words() == "loading weights, 50 %"
    progress.report("compiling steps", 0, 20)
    assert progress.words() == "compiling steps, 0 of 20"
    clock.now = 12.0
    progress.report("compiling steps", 6, 20)
    assert progress.words() == "compiling steps, 6 of 20, about 28 s"
    progress.report("measuring steps")
    assert progress.words() == "measuring steps"


def test_a_later_one_is_estimated_by_the_last_until_its_own_pace_tells(clock: Clock) -> None:
    progress = StartProgress()
    progress.last = {"starting": 2.0, "compiling steps": 40.0, "measuring steps": 10.0}
    assert progress.words() == "starting, about 52 s"
    clock.now = 1.0
    progress.report("compiling steps", 0, 20)
    assert progress.words() == "compiling steps, 0 of 20, about 50 s"
    clock.now = 11.0
    progress.report("compiling steps", 4, 20)
    assert progress.words() == "compiling steps, 4 of 20, about 40 s"
    # Twice as slow as the last.
    clock.now = 21.0
    progress.report("compiling steps", 5, 20)
    assert progress.words() == "compiling steps, 5 of 20, about 70 s"
    clock.now = 81.0
    progress.report("measuring steps")
    assert progress.words() == "measuring steps, about 10 s"
    # It takes longer than the last: nothing is known of its end.
    clock.now = 95.0
    assert progress.words() == "measuring steps"
    assert progress.seconds == {"starting": 1.0, "compiling steps": 80.0}


def test_a_stage_that_the_last_start_did_not_have(clock: Clock) -> None:
    progress = StartProgress()
    progress.last = {"compiling steps": 40.0}
    progress.report("waiting for the drafter")
    clock.now = 9.0
    assert progress.words() == "waiting for the drafter, about 40 s"
