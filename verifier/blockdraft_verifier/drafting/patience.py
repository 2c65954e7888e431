"""When to ask a drafter again that did not answer in time; a circuit breaker."""

import math
from collections.abc import Callable

from blockdraft_runtime.channel import Backoff, BackoffPolicy

# The first pause is that of a few steps, as on a busy machine any drafter is late now and then; the
# longest bounds how often a drafter that hangs, or comes back only to hang again, costs a wait.
LEAVING_ALONE = BackoffPolicy(initial_seconds=0.05, max_seconds=30.0)


class Patience:
    """Leaves a drafter alone after each missed deadline, longer with each one in a row.

    It outlives the streams to the drafter: one whose worker hangs still takes a new stream.
    """

    def __init__(self, clock: Callable[[], float], backoff: Backoff | None = None) -> None:
        """Start with trust.

        Args:
            clock: Seconds.
            backoff: Draws the pauses.
        """
        self._clock = clock
        self._backoff = backoff or Backoff(LEAVING_ALONE)
        self._asks_from = -math.inf

    @property
    def asks(self) -> bool:
        """Whether the drafter may be asked now."""
        return self._clock() >= self._asks_from

    @property
    def pause_seconds(self) -> float:
        """How long the drafter is still left alone; 0 if it may be asked."""
        return max(0.0, self._asks_from - self._clock())

    def missed(self) -> None:
        """Learn that a deadline passed."""
        self._asks_from = self._clock() + self._backoff.pause_seconds()

    def kept(self) -> None:
        """Learn that proposals came in time."""
        self._backoff.reset()
        self._asks_from = -math.inf
