"""Whether the step under way takes so much longer than any should that it will never end."""

import contextlib
import time
from collections.abc import Callable, Iterator

# Steps vary with what else the processors do, and the first of a kind may page weights in.
OVERDUE_FACTOR = 20.0
# Whatever a machine does beside, no step of a small target takes this long.
LEAST_OVERDUE_SECONDS = 10.0


class StepWatch:
    """Times the step under way; the engine's thread runs it, any other may ask."""

    def __init__(
        self,
        least_seconds: float = LEAST_OVERDUE_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Watch for steps that take longer than `least_seconds`, at the least."""
        self._least_seconds = least_seconds
        self._clock = clock
        self._limit_seconds = least_seconds
        self._began: float | None = None

    def expect(self, slowest_seconds: float) -> None:
        """Learn how long the slowest step takes."""
        self._limit_seconds = max(self._least_seconds, OVERDUE_FACTOR * slowest_seconds)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Say that a step is under way."""
        self._began = self._clock()
        try:
            yield
        finally:
            self._began = None

    @property
    def overdue(self) -> bool:
        """Whether the step under way takes too long."""
        began = self._began
        return began is not None and self._clock() - began > self._limit_seconds
