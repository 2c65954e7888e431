"""Calls that other threads leave for the engine's thread."""

import queue
from collections.abc import Callable

IDLE_WAIT_SECONDS = 0.2


class Inbox:
    """Calls in the order in which they came; any thread may `post`."""

    def __init__(self) -> None:
        """Begin empty."""
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.post = self._calls.put

    def __len__(self) -> int:
        """How many calls are there."""
        return self._calls.qsize()

    def drain(self) -> None:
        """Make the calls that are there now: a step comes between two turns of a guest."""
        for _ in range(len(self)):
            self._calls.get()()

    def wait(self) -> None:
        """Make the next call once it comes; return now and then without one."""
        try:
            self._calls.get(timeout=IDLE_WAIT_SECONDS)()
        except queue.Empty:
            return
