"""Guards against steps that never end, and against compilation while serving."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import jax.monitoring

logger = logging.getLogger(__name__)

# Steps vary with what else the processors do, and the first of a kind may page weights in.
OVERDUE_FACTOR = 20.0
# Even on a busy machine no step of a small target takes this long.
LEAST_OVERDUE_SECONDS = 10.0
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


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
        """Whether the step under way takes so long that it will never end."""
        began = self._began
        return began is not None and self._clock() - began > self._limit_seconds


class RecompilationGuard:
    """Counts compilations while armed.

    A shape that slipped past the buckets would stall every request for seconds. JAX itself reports
    every compilation to the guard, wherever it happens.
    """

    def __init__(self, on_compilation: Callable[[], None]) -> None:
        """Listen from now on; `on_compilation` is called for each one while armed."""
        self._on_compilation = on_compilation
        self._armed = False
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def arm(self) -> None:
        """Forbid compilations from now on."""
        self._armed = True

    def disarm(self) -> None:
        """Allow compilations again, for a planned warm-up."""
        self._armed = False

    def _on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        if self._armed and event == COMPILE_EVENT:
            self._on_compilation()
            logger.error("compiled for %.2f s after warm-up; a shape has leaked", duration_secs)
