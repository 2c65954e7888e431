"""The front door on paper: what the JSON report holds, and the page of it."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from blockdraft_bench.common.markdown import Cell, number, page, table
from blockdraft_bench.common.provenance import MachineReport
from blockdraft_bench.common.statistics import percentiles

if TYPE_CHECKING:
    from blockdraft_bench.door.callers import Point, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSpeed:
    """What callers saw at one point; medians over the rounds.

    Attributes:
        streams: Answers read at once.
        step_tokens: Tokens that a step of the verifier gains for each.
        tokens_per_second: Of all streams together.
        messages_per_second: In which they came.
        gap_ms: Between neighbouring messages of a stream; median over all streams and rounds.
        gap_ms_p99: Its 99th percentile.
        server_cpu_ms: Processor time of the server for 1,000 tokens; None where it is not known.
        verifier_cpu_ms: The same of the verifier.
        client_cpu_ms: The same of the callers' process.
    """

    streams: int
    step_tokens: int
    tokens_per_second: float
    messages_per_second: float
    gap_ms: float
    gap_ms_p99: float
    server_cpu_ms: float | None
    verifier_cpu_ms: float | None
    client_cpu_ms: float | None

    @classmethod
    def of(cls, point: "Point", readings: "Sequence[Reading]") -> "DoorSpeed":
        """Sum up the rounds of a point."""

        def median(value: "Callable[[Reading], float]") -> float:
            return statistics.median(map(value, readings))

        def cpu(name: str) -> float | None:
            if any(name not in reading.cpu_seconds for reading in readings):
                return None
            return median(lambda reading: 1e6 * reading.cpu_seconds[name] / reading.tokens)

        gaps = [1e3 * gap for reading in readings for gap in reading.gaps] or [0.0]
        gap, slow = percentiles(gaps, (50, 99))
        return cls(
            streams=point.streams,
            step_tokens=point.step_tokens,
            tokens_per_second=median(lambda reading: reading.tokens / reading.seconds),
            messages_per_second=median(lambda reading: reading.messages / reading.seconds),
            gap_ms=gap,
            gap_ms_p99=slow,
            server_cpu_ms=cpu("server"),
            verifier_cpu_ms=cpu("verifier"),
            client_cpu_ms=cpu("client"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorReport(MachineReport):
    """The whole report.

    Attributes:
        step_ms: What the target took for a step.
        tokens: Of each answer.
        runs: Rounds.
        results: One for each point.
    """

    benchmark: Literal["door"] = "door"
    step_ms: float
    tokens: int
    runs: int
    results: tuple[DoorSpeed, ...] = ()


def markdown(report: DoorReport) -> str:
    """Return the page."""
    caption = (
        "Answers through server and SDK, from a verifier whose target takes "
        f"{report.step_ms:g} ms for a step: {report.tokens} tokens each, medians of {report.runs} "
        f"rounds, processor time in ms for 1,000 tokens; {report.made_on}."
    )
    rows: list[list[Cell]] = [
        [
            row.streams,
            row.step_tokens,
            number(row.tokens_per_second, 0),
            number(row.messages_per_second, 0),
            row.gap_ms,
            row.gap_ms_p99,
            row.server_cpu_ms,
            row.verifier_cpu_ms,
            row.client_cpu_ms,
        ]
        for row in report.results
    ]
    headings = ["Streams", "Tokens a step", "Tokens/s", "Messages/s", "Gap, ms", "p99"]
    return page(caption, table([*headings, "Server", "Verifier", "Client"], rows))
