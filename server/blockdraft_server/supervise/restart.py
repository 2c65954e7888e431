"""When a child that died is started again; no I/O."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from blockdraft_runtime.channel import Backoff, BackoffPolicy

RESTARTING = BackoffPolicy(initial_seconds=0.5, max_seconds=30.0)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How deaths are answered.

    Attributes:
        backoff: Pauses before the restarts.
        max_deaths: So many deaths within `window_seconds`, without the child having been ready
            in between, are final.
        window_seconds: See `max_deaths`. A child that was ready for longer than this before it
            died starts again with the first pause.
    """

    backoff: BackoffPolicy = RESTARTING
    max_deaths: int = 5
    window_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.max_deaths < 1:
            raise ValueError(f"max_deaths must be >= 1, got {self.max_deaths}")
        if not self.window_seconds > 0:
            raise ValueError(f"window_seconds must be > 0, got {self.window_seconds}")


class RestartTracker:
    """The deaths of one child."""

    def __init__(self, policy: RestartPolicy, draw: Callable[[], float] = random.random) -> None:
        """Start with a child that never died; see `Backoff` for `draw`."""
        self._policy = policy
        self._backoff = Backoff(policy.backoff, draw)
        self._early_deaths: list[float] = []

    def died(self, now: float, ready_since: float | None) -> float | None:
        """Take note of a death; return the pause before the restart, None to give up.

        Args:
            now: Time of the death, in seconds of any clock.
            ready_since: When the child had become ready; None if it never did.
        """
        policy = self._policy
        if ready_since is None:
            recent = [death for death in self._early_deaths if now - death < policy.window_seconds]
            self._early_deaths = [*recent, now]
            if len(self._early_deaths) >= policy.max_deaths:
                return None
        else:
            self._early_deaths = []
            if now - ready_since > policy.window_seconds:
                self._backoff.reset()
        return self._backoff.pause_seconds()
