"""The engine's host time on paper: what the JSON report holds, and the page of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.markdown import Cell, number, page, table
from blockdraft_bench.common.provenance import MachineReport
from blockdraft_bench.common.statistics import percentiles

Mode = Literal["plain", "drafted"]


@dataclass(frozen=True, slots=True)
class HostTime:
    """What the engine itself needs for a step, in milliseconds.

    Attributes:
        mode: Whether the steps verify drafted tokens.
        sequences: How many decode.
        host_ms: A whole step without what target and drafter needed; median.
        host_ms_p90: Its 90th percentile.
    """

    mode: Mode
    sequences: int
    host_ms: float
    host_ms_p90: float

    @classmethod
    def of(cls, mode: Mode, sequences: int, seconds: Sequence[float]) -> "HostTime":
        """Sum up the steps of a point, each in seconds."""
        median, slow = percentiles([1e3 * each for each in seconds], (50, 90))
        return cls(mode, sequences, median, slow)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport(MachineReport):
    """The whole report.

    Attributes:
        width: Elements of a feature.
        block_size: Tokens of a drafted block, the anchor included.
        accepted: Drafted tokens that a step accepted of each sequence, on average.
        draft_policy: How the engine chose draft lengths.
        runs: Timed steps of each point.
        results: One for each point.
    """

    benchmark: Literal["host"] = "host"
    width: int
    block_size: int
    accepted: int
    draft_policy: str
    runs: int
    results: tuple[HostTime, ...] = ()


def markdown(report: HostReport) -> str:
    """Return the page."""
    caption = (
        "The engine's own milliseconds per step, with a target and a drafter that take none: "
        f"features of {report.width} elements, blocks of {report.block_size} of which "
        f"{report.accepted} drafted tokens are accepted, {report.draft_policy} policy, medians of "
        f"{report.runs} steps; {report.made_on}."
    )
    rows: list[list[Cell]] = [
        [
            row.mode,
            row.sequences,
            row.host_ms,
            row.host_ms_p90,
            number(row.host_ms / row.sequences, 3),
        ]
        for row in report.results
    ]
    headings = ["Mode", "Sequences", "Host, ms", "p90", "Per sequence"]
    return page(caption, table(headings, rows))
