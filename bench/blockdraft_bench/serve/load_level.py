"""How hard a service is pressed, and with which kind of decoding: what tells runs apart."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["closed", "open"]
# "learning" is "drafted" with requests that are recorded, beside a trainer that learns from them.
Method = Literal["drafted", "plain", "learning"]
METHODS: tuple[Method, ...] = ("drafted", "plain")


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """How hard a service is pressed.

    Attributes:
        mode: "closed" keeps a number of requests in flight, "open" sends at a rate.
        value: That number, or requests per second.
    """

    mode: Mode
    value: float

    def __str__(self) -> str:
        """Return what tables call it."""
        return f"{self.value:g} {'at a time' if self.mode == 'closed' else 'per second'}"


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which run: one method at one level of load, with so many requests, in one of the rounds."""

    level: LoadLevel
    method: Method
    requests: int
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLevel:
    """A result at a level of load.

    Attributes:
        mode: "closed" or "open".
        load: Requests in flight, or requests per second.
    """

    mode: Mode
    load: float

    @property
    def level(self) -> LoadLevel:
        """The level."""
        return LoadLevel(self.mode, self.load)
