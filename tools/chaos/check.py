"""What became of each request, judged by its true answer and by the faults; no I/O."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tools.chaos.faults import Happened
from tools.chaos.load import Heard
from tools.chaos.schedule import Kind
from tools.chaos.wanted import Wanted

from blockdraft_client import Completion

VERIFIER_PLACES = (
    frozenset({"verifier-1", "server-verifier-1"}),
    frozenset({"verifier-2", "server-verifier-2"}),
)
FRONT = frozenset({"server", "client-server"})
# So many verifiers have to die with a request before it may be refused for it.
POISON_DEATHS = 3
_CLOCK_SECONDS = 0.05


class Fate(StrEnum):
    """What became of a request."""

    RIGHT = "answered rightly"
    LEFT = "left by its caller"
    LATE = "ended at its deadline"
    EXPLAINED = "ended with an error that a fault explains"
    UNEXPLAINED = "ended with an error that no fault explains"
    CHANGED = "has other tokens"
    LOST = "never ended"

    @property
    def good(self) -> bool:
        """Whether that may happen."""
        return self in (Fate.RIGHT, Fate.LEFT, Fate.LATE, Fate.EXPLAINED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one request, and why it is judged so."""

    fate: Fate
    why: str = ""


def judge(wanted: Wanted, heard: Heard, true: Completion, happened: Sequence[Happened]) -> Verdict:
    """Return what became of a request, whose answer without faults is `true`."""
    difference = _difference(heard, true)
    if difference is not None:
        return Verdict(Fate.CHANGED, difference)
    if heard.finish is not None:
        return Verdict(Fate.RIGHT)
    if heard.left:
        return Verdict(Fate.LEFT)
    match heard.error:
        case None | "nothing came":
            return Verdict(Fate.LOST, "no end within the deadline")
        case "DeadlineExceededError":
            took = heard.ended - heard.began
            late = wanted.hurried and took >= wanted.deadline_seconds - _CLOCK_SECONDS
            why = f"deadline {wanted.deadline_seconds:.2f} s, ended after {took:.2f} s"
            return Verdict(Fate.LATE if late else Fate.UNEXPLAINED, "" if late else why)
    cause = _cause(heard, [each for each in happened if _meets(each, heard)])
    said = f"{heard.error}: {heard.reason}"
    return Verdict(Fate.EXPLAINED if cause else Fate.UNEXPLAINED, said)


def recovery_seconds(happened: Sequence[Happened], heard: Sequence[Heard]) -> list[list[float]]:
    """Return, for each fault, the longest pause of each stream that it met.

    A fault meets a stream that had tokens before it and got some afterwards. Its pauses are those
    from the fault on, until it has settled: what was on its way already comes at once, and says
    nothing. A pause that several faults meet is counted for each.
    """
    return [
        [
            max(pauses)
            for each in heard
            if each.times
            and each.times[0] <= fault.began
            and (
                pauses := [
                    after - max(before, fault.began)
                    for before, after in itertools.pairwise(each.times)
                    if after > fault.began and before < fault.settled
                ]
            )
        ]
        for fault in happened
    ]


def _difference(heard: Heard, true: Completion) -> str | None:
    """Return how an answer, or what came of it, is not the true one."""
    tokens = list(true.token_ids)
    if heard.token_ids != tokens[: len(heard.token_ids)]:
        return f"heard {heard.token_ids}, true are {tokens}"
    if not true.text.startswith(heard.text):
        return f"heard {heard.text!r}, true is {true.text!r}"
    if heard.finish is None:
        return None
    if len(heard.token_ids) != len(tokens) or heard.text != true.text:
        return f"{len(heard.token_ids)} of {len(tokens)} tokens and yet {heard.finish}"
    if heard.finish != str(true.finish_reason):
        return f"ended with {heard.finish}, true is {true.finish_reason}"
    return None


def _meets(happened: Happened, heard: Heard) -> bool:
    return happened.began <= heard.ended and heard.began <= happened.settled


def _cause(heard: Heard, happened: Sequence[Happened]) -> bool:
    """Whether one of the faults that met a request explains its error.

    What happens to the drafter, or to one verifier while the other is well, explains none.
    """
    front = any(each.fault.target in FRONT for each in happened)
    if heard.error == "ConnectionFailedError":
        # What is only slow breaks no connection.
        breaking = (Kind.KILL, Kind.HANG, Kind.CUT, Kind.HALF_OPEN)
        return any(each.fault.target in FRONT and each.fault.kind in breaking for each in happened)
    if heard.reason == "POISON_REQUEST":
        deaths = [each for each in happened if each.fault.kind in (Kind.KILL, Kind.HANG)]
        return sum(each.fault.target.startswith("verifier-") for each in deaths) >= POISON_DEATHS
    if heard.reason in ("VERIFIER_UNAVAILABLE", "LOADING", "DRAINING"):
        # A server that was started again has not looked at its verifiers yet.
        return front or all(
            any(each.fault.target in places for each in happened) for places in VERIFIER_PLACES
        )
    return False
