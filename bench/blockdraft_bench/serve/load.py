"""How hard a service is pressed, and with which kind of decoding."""

import math
from dataclasses import dataclass
from typing import Literal

Mode = Literal["closed", "open"]
Method = Literal["drafted", "plain"]
METHODS: tuple[Method, ...] = ("drafted", "plain")


@dataclass(frozen=True, slots=True)
class Load:
    """How hard the service was pressed.

    Attributes:
        mode: "closed" keeps a number of requests in flight, "open" sends at a rate.
        value: That number, or requests per second.
    """

    mode: Mode
    value: float

    def default_requests(self) -> int:
        """Return how many requests to send unless told: two for each in flight, at least 8."""
        return max(8, math.ceil(2 * self.value))
