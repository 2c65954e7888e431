import asyncio
from collections.abc import Callable

import pytest

from blockdraft_runtime.event_loop import TICK_SECONDS, HeldLoop


class PlayedLoop:
    """An event loop of one timer, whose time passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: float | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> "PlayedLoop":
        self.due, self._callback = when, callback
        return self

    def cancel(self) -> None:
        self.due = None

    def pass_until(self, end: float) -> None:
        """Call what is due, as a loop does that nothing holds."""
        while self.due is not None and self.due <= end:
            self.now = max(self.now, self.due)
            self._callback()
        self.now = end


def test_one_check_comes_late_however_long_the_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, told = PlayedLoop(), list[float]()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    held = HeldLoop(told.append)
    held.start()
    loop.pass_until(loop.now + 5.5 * TICK_SECONDS)
    assert told == pytest.approx([0.0] * 5)
    loop.now += 10 * TICK_SECONDS
    loop.pass_until(loop.now + 3.5 * TICK_SECONDS)
    held.stop()
    loop.pass_until(loop.now + 3 * TICK_SECONDS)
    assert told == pytest.approx([0.0] * 5 + [9.5 * TICK_SECONDS] + [0.0] * 3)
    assert held.longest_seconds == max(told)
