"""How long an event loop is held: the time for which one callback lets no other run."""

import asyncio
from collections.abc import Callable

# Holds are told too short by up to this; looking more often would cost more than it tells.
TICK_SECONDS = 0.01
WINDOW_SECONDS = 60.0


class HeldLoop:
    """Looks at a running event loop at regular times, and how late it comes to look."""

    def __init__(self, on_hold: Callable[[float], None] = lambda seconds: None) -> None:
        """Begin with `start`.

        Args:
            on_hold: Told how late each look was, in seconds.
        """
        self._on_hold = on_hold
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._window_end = 0.0
        self._longest = 0.0
        self._longest_before = 0.0

    def start(self) -> None:
        """Begin to look at the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._window_end = self._loop.time() + WINDOW_SECONDS
        self._wait()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def longest_seconds(self) -> float:
        """The longest hold of the last one to two minutes."""
        return max(self._longest, self._longest_before)

    def _wait(self) -> None:
        assert self._loop is not None
        self._due = self._loop.time() + TICK_SECONDS
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        late = max(now - self._due, 0.0)
        if now >= self._window_end:
            self._longest_before, self._longest = self._longest, 0.0
            self._window_end = now + WINDOW_SECONDS
        self._longest = max(self._longest, late)
        self._on_hold(late)
        self._wait()
