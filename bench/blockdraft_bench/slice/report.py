"""The cost of announcing steps on paper: what the JSON report holds, and the page of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.markdown import Cell, number, page, table
from blockdraft_bench.common.provenance import MachineReport
from blockdraft_bench.common.statistics import percentiles


@dataclass(frozen=True, slots=True)
class AnnouncementTime:
    """What announcing a step of one size costs, in milliseconds.

    Attributes:
        bytes: Of the step's inputs.
        held_ms: From before the leader's call until the last follower held the step; median.
        held_ms_p90: Its 90th percentile.
        leader_ms: The leader's call; median.
    """

    bytes: int
    held_ms: float
    held_ms_p90: float
    leader_ms: float

    @classmethod
    def of(cls, size: int, held: Sequence[float], leader: Sequence[float]) -> "AnnouncementTime":
        """Sum up the steps of a size, each in seconds."""
        median, slow = percentiles([1e3 * each for each in held], (50, 90))
        [call] = percentiles([1e3 * each for each in leader], (50,))
        return cls(size, median, slow, call)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceReport(MachineReport):
    """The whole report.

    Attributes:
        followers: Processes that each step was announced to.
        runs: Timed steps of each size.
        results: One for each size.
    """

    benchmark: Literal["slice"] = "slice"
    followers: int
    runs: int
    results: tuple[AnnouncementTime, ...] = ()


def markdown(report: SliceReport) -> str:
    """Return the page."""
    caption = (
        "Announcing a step to the other processes of a slice, over loopback and without a model: "
        f"milliseconds, followers: {report.followers}, medians of {report.runs} steps; "
        f"{report.made_on}."
    )
    rows: list[list[Cell]] = [
        [
            row.bytes,
            number(row.held_ms, 3),
            number(row.held_ms_p90, 3),
            number(row.leader_ms, 3),
        ]
        for row in report.results
    ]
    return page(caption, table(["Bytes", "Held", "p90", "Leader's call"], rows))
