"""How long to wait before trying again: longer after each failure, and not all at once.

Whatever fails for one caller fails for many: a verifier that dies breaks all its streams, a drafter
that dies loses all its verifiers. Pauses of fixed lengths bring them all back in the same instant,
time after time. So each pause is drawn at random from the second half of a range that doubles; the
first half is never drawn, so that pauses grow until the range is at its longest.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

# 2.0**1024 overflows; no pause needs more doublings than this.
_MOST_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """The range from which pauses are drawn.

    Attributes:
        initial_seconds: Longest pause after the first failure; doubles with each further one.
        max_seconds: Longest pause after any number of failures.
    """

    initial_seconds: float
    max_seconds: float

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.initial_seconds <= self.max_seconds:
            raise ValueError(
                "0 <= initial_seconds <= max_seconds must hold, got "
                f"{self.initial_seconds} and {self.max_seconds}"
            )

    def longest_seconds(self, failures: int) -> float:
        """Return the longest pause after `failures` failures in a row, at least one."""
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        return min(self.initial_seconds * 2.0**doublings, self.max_seconds)


class Backoff:
    """The failures in a row of one caller, and the pause that follows each. Not thread-safe."""

    def __init__(self, policy: BackoffPolicy, draw: Callable[[], float] = random.random) -> None:
        """Start without a failure.

        Args:
            policy: The range from which pauses are drawn.
            draw: Returns a random number from [0, 1).
        """
        self._policy = policy
        self._draw = draw
        self._failures = 0

    def pause_seconds(self) -> float:
        """Count a failure; return the pause before the next try."""
        self._failures += 1
        return self._policy.longest_seconds(self._failures) * (1 + self._draw()) / 2

    def reset(self) -> None:
        """Forget the failures: a try succeeded."""
        self._failures = 0
