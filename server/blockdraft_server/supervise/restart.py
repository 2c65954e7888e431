"""When a child that died is started again; no I/O."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How deaths are answered.

    Attributes:
        initial_delay_seconds: Pause before the first restart; each further one is twice as long.
        max_delay_seconds: Longest pause.
        max_deaths: So many deaths within `window_seconds`, without the child having been ready
            in between, are final.
        window_seconds: See `max_deaths`. A child that was ready for longer than this before it
            died starts again with the first pause.
    """

    initial_delay_seconds: float = 0.5
    max_delay_seconds: float = 30.0
    max_deaths: int = 5
    window_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.initial_delay_seconds <= self.max_delay_seconds:
            raise ValueError(
                "0 <= initial_delay_seconds <= max_delay_seconds must hold, got "
                f"{self.initial_delay_seconds} and {self.max_delay_seconds}"
            )
        if self.max_deaths < 1:
            raise ValueError(f"max_deaths must be >= 1, got {self.max_deaths}")
        if not self.window_seconds > 0:
            raise ValueError(f"window_seconds must be > 0, got {self.window_seconds}")


class RestartTracker:
    """The deaths of one child."""

    def __init__(self, policy: RestartPolicy) -> None:
        """Start with a child that never died."""
        self._policy = policy
        self._early_deaths: list[float] = []
        self._restarts = 0

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
                self._restarts = 0
        # The exponent is bounded because 2.0**1024 overflows.
        delay = policy.initial_delay_seconds * 2.0 ** min(self._restarts, 64)
        self._restarts += 1
        return min(delay, policy.max_delay_seconds)
