"""The cost of the link on paper: what the JSON report holds, and the page of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from blockdraft_bench.common.markdown import Cell, page, table
from blockdraft_bench.common.provenance import MachineReport
from blockdraft_bench.common.statistics import percentiles

if TYPE_CHECKING:
    from blockdraft_bench.link.exchange import ExchangeTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTime:
    """What a step costs at one point, in milliseconds.

    Attributes:
        transport: The way between the processes.
        sequences: How many were drafted for.
        rows: Newly committed positions of each, whose features were sent.
        width: Elements of a feature.
        bytes: Of the features of a step.
        round_trip_ms: From before the request until all proposals were taken in; median.
        round_trip_ms_p90: Its 90th percentile.
        verifier_host_ms: What of it the verifier's thread did not wait for an answer; median.
        drafter_host_ms: What the drafter needed for its answers beside its draft method; median.
    """

    transport: str
    sequences: int
    rows: int
    width: int
    bytes: int
    round_trip_ms: float
    round_trip_ms_p90: float
    verifier_host_ms: float
    drafter_host_ms: float

    @classmethod
    def of(
        cls,
        times: "Sequence[ExchangeTimes]",
        *,
        transport: str,
        sequences: int,
        rows: int,
        width: int,
        bytes: int,
    ) -> "LinkTime":
        """Sum up the round trips of a point; for the other arguments see the attributes."""
        median, slow = percentiles([1e3 * each.round_trip for each in times], (50, 90))
        [verifier] = percentiles([1e3 * each.verifier_host for each in times], (50,))
        [drafter] = percentiles([1e3 * each.drafter_host for each in times], (50,))
        return cls(
            transport=transport,
            sequences=sequences,
            rows=rows,
            width=width,
            bytes=bytes,
            round_trip_ms=median,
            round_trip_ms_p90=slow,
            verifier_host_ms=verifier,
            drafter_host_ms=drafter,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport(MachineReport):
    """The whole report.

    Attributes:
        draft_length: Tokens proposed for each sequence.
        runs: Timed round trips of each point.
        results: One for each point.
    """

    benchmark: Literal["link"] = "link"
    draft_length: int
    runs: int
    results: tuple[LinkTime, ...] = ()


def markdown(report: LinkReport) -> str:
    """Return the page."""
    caption = (
        "The link between verifier and drafter, two processes without models: milliseconds of a "
        f"step, proposals of {report.draft_length} tokens, medians of {report.runs} round trips; "
        f"{report.made_on}."
    )
    headings = ["Transport", "Width", "Rows", "Sequences", "MB", "Round trip", "p90"]
    rows: list[list[Cell]] = [
        [
            row.transport,
            row.width,
            row.rows,
            row.sequences,
            row.bytes / 1e6,
            row.round_trip_ms,
            row.round_trip_ms_p90,
            row.verifier_host_ms,
            row.drafter_host_ms,
        ]
        for row in report.results
    ]
    return page(caption, table([*headings, "Verifier's host", "Drafter's host"], rows))
