"""Which faults happen, and when, as a pure function of a seed.

A fault comes due when so many requests have begun, not at a time, so that all of them meet the load
on a slow machine too. The seed determines the schedule. What the processes are doing when a fault
hits them it does not, so two runs of a seed differ.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

PROCESSES = ("server", "verifier-1", "verifier-2", "drafter", "trainer")
HOPS = (
    "client-server",
    "server-verifier-1",
    "server-verifier-2",
    "verifier-1-drafter",
    "verifier-2-drafter",
)


class Kind(StrEnum):
    """What is done to a process or to the connections of a hop."""

    KILL = "kill"
    """SIGKILL; the supervisor starts it again."""
    STOP = "stop"
    """SIGSTOP for 5 s, which is less than what counts as a hang."""
    HANG = "hang"
    """SIGSTOP until the supervisor kills it."""
    STARVE = "starve"
    """The process runs a fifth of the time, for 3 s."""
    CUT = "cut"
    """All connections are reset."""
    DELAY = "delay"
    """For 3 s, everything arrives 0.2 s late."""
    HALF_OPEN = "half-open"
    """The connections carry nothing any more, and nobody is told."""


SECONDS = {Kind.STOP: 5.0, Kind.HANG: 30.0, Kind.STARVE: 3.0, Kind.DELAY: 3.0}
DELAY_SECONDS = 0.2
OF_PROCESSES = (Kind.KILL, Kind.STOP, Kind.STARVE)
OF_HOPS = (Kind.CUT, Kind.DELAY, Kind.HALF_OPEN)
# Killing the verifier that hangs takes the supervisor long; once is enough.
PAIRS = (
    *((kind, target) for kind in OF_PROCESSES for target in PROCESSES),
    *((kind, target) for kind in OF_HOPS for target in HOPS),
    (Kind.HANG, "verifier-1"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    after_requests: int  # how many requests have begun when it comes due
    kind: Kind  # what happens
    target: str  # to which process or hop

    @property
    def seconds(self) -> float:
        """How long it is kept up; 0 for what happens in an instant."""
        return SECONDS.get(self.kind, 0.0)


def schedule(seed: int, faults: int, requests: int) -> tuple[Fault, ...]:
    """Return `faults` faults among `requests` requests, in the order in which they come due.

    Every pair of kind and target occurs once before any occurs twice, in random order. Faults are
    spread over the requests but for the first and the last twentieth.
    """
    first, last = requests // 20, requests - requests // 20
    if faults > last - first:
        raise ValueError(f"{faults} faults do not fit among {requests} requests")
    draw = random.Random(seed)
    chosen: list[tuple[Kind, str]] = []
    while len(chosen) < faults:
        chosen.extend(draw.sample(PAIRS, len(PAIRS)))
    times = sorted(draw.sample(range(first, last), faults))
    return tuple(Fault(after, *pair) for after, pair in zip(times, chosen, strict=False))
