"""A service under load on paper: what `serve.json` holds, and its Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from blockdraft_bench.common.markdown import INTERVALS_NOTE, number, page, share, table
from blockdraft_bench.common.provenance import Drafter, Report
from blockdraft_bench.serve.settings import Asked
from blockdraft_bench.serve.split import MAX_LOSS_SHARE, SideSummary, SplitSummary
from blockdraft_bench.serve.summary import CostOfLearning, Distribution, LoadSummary, Speedup

_ROUNDS_NOTE = (
    "Ratios are medians of the rounds; parentheses hold the lowest, the highest and their number."
)


@dataclass(frozen=True, slots=True)
class ServiceAbout:
    """The service that is measured.

    Attributes:
        address: Where it ran already; None if it was started for the measurement.
        draft_policy: How long proposals are; None if only the service knows.
        engine: Limits and policy of its engine; None if only the service knows.
        max_context_tokens: Most tokens of a prompt and its answer.
        version: Of its server.
    """

    address: str | None
    draft_policy: str | None
    engine: dict[str, Any] | None
    max_context_tokens: int
    version: str


@dataclass(frozen=True, slots=True)
class BlockDrafter(Drafter):
    """The service's drafter, with the tokens of its blocks."""

    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeReport(Report):
    """What a service did under load, and what its processes cost.

    Attributes:
        service: The service.
        drafter: Its drafter; None if it has none.
        settings: How it was asked.
        results: One for each level of load and method.
        speedups: Drafted against plain, at each level where both ran.
        learning: Drafted with learning against without, likewise.
        split: Three processes against one, by how many prompts at a time.
    """

    benchmark: Literal["serve"] = "serve"
    service: ServiceAbout
    drafter: BlockDrafter | None
    settings: Asked
    results: tuple[LoadSummary, ...] = ()
    speedups: tuple[Speedup, ...] = ()
    learning: tuple[CostOfLearning, ...] = ()
    split: tuple[SplitSummary, ...] = ()


def markdown(report: ServeReport) -> str:
    """Return the tables people read, with what they have to know about them."""
    service, settings, drafter = report.service, report.settings, report.drafter
    where = f"at {service.address}" if service.address else "started for this run"
    drafting = drafter or "no drafter"
    return page(
        f"Service {where}: target {report.target}, {drafting}, "
        f"draft policy {service.draft_policy or 'unknown'}. Answers of at most "
        f"{settings.max_tokens} tokens at temperature {settings.temperature:g}; "
        f"{report.hardware.device}, {report.hardware.cores} cores, shared by service and client "
        f"where both run here; commit {report.commit or 'unknown'}.",
        _load_table(report.results),
        table(
            ["Load", "Drafted / plain tokens/s", "Identical answers"],
            ([str(row.level), _ratio(row), share(row.identical_share)] for row in report.speedups),
        ),
        _ROUNDS_NOTE if any(row.rounds > 1 for row in report.speedups) else "",
        _learning_table(report.learning),
        _split_table(report.split),
        INTERVALS_NOTE.replace("answers", "groups") if report.split else "",
    )


def _load_table(rows: Sequence[LoadSummary]) -> str:
    return table(
        [
            *("Load", "Method", "Requests", "Failed", "Tokens/s"),
            *("First token p50 / p95 / p99 s", "Per token p50 / p95 / p99 ms"),
            "Between messages p50 / p95 / p99 ms",
            *("Latency p50 / p95 / p99 s", "In SLO", "Goodput 1/s", "τ"),
            *("Cached prompt", "Per 10⁶ tokens"),
        ],
        (
            [
                str(row.level),
                row.method,
                row.requests,
                _failures(row),
                number(row.output_tokens_per_second, 1),
                _percentiles(row.ttft_seconds, 2),
                _percentiles(row.tpot_seconds, 0, 1e3),
                _percentiles(row.gap_seconds, 0, 1e3),
                _percentiles(row.latency_seconds, 2),
                share(row.slo_share),
                number(row.goodput_requests_per_second, 3),
                row.acceptance_length,
                share(row.cached_prompt_share),
                row.cost_per_million_tokens,
            ]
            for row in rows
        ),
    )


def _learning_table(rows: Sequence[CostOfLearning]) -> str:
    return table(
        [
            *("Load", "Learning / without: tokens/s", "Gap p99", "First token p99"),
            *("Identical answers", "Trainer's processor s"),
        ],
        (
            [
                str(row.level),
                number(row.throughput, 3, unit="x"),
                number(row.gap_p99, unit="x"),
                number(row.first_token_p99, unit="x"),
                share(row.identical_share),
                number(row.trainer_seconds, 1),
            ]
            for row in rows
        ),
    )


def _split_table(rows: Sequence[SplitSummary]) -> str:
    return table(
        [
            *("At a time", "Groups", "One process tokens/s", "Three processes tokens/s", "Ratio"),
            *("Loss", "Step one / three ms", "One: verify + draft + transport + rest"),
            *("Three: verify + draft + transport + rest", "Idle side's cores one / three"),
            *("Identical", f"At most {MAX_LOSS_SHARE:.0%} lost"),
        ],
        (
            [
                row.concurrency,
                row.groups,
                row.one_process.tokens_per_second,
                row.three_processes.tokens_per_second,
                number(row.ratio, 3),
                share(row.loss_share),
                " / ".join(number(side.step_seconds, 1, factor=1e3) for side in row.sides),
                *(_parts(side) for side in row.sides),
                " / ".join(number(side.idle_cores, 3) for side in row.sides),
                share(row.identical_share),
                row.requirement.verdict(),
            ]
            for row in rows
        ),
    )


def _ratio(row: Speedup) -> str:
    """Return the median of the rounds, and between which they lie where there are several."""
    text = number(row.speedup, unit="x")
    if row.rounds < 2:
        return text
    return f"{text} ({number(row.lowest)} to {number(row.highest)}; {row.rounds})"


def _failures(row: LoadSummary) -> str:
    reasons = ", ".join(f"{count} {name}" for name, count in row.errors.items())
    return f"{row.failed} ({reasons})" if reasons else str(row.failed)


def _parts(side: SideSummary) -> str:
    """Return where a step's time goes, in milliseconds."""
    parts = (side.verify_seconds, side.draft_seconds, side.transport_seconds)
    rest = side.step_seconds - sum(parts)
    return " + ".join(number(part, 1, factor=1e3) for part in (*parts, rest))


def _percentiles(value: Distribution | None, digits: int, factor: float = 1.0) -> str:
    if value is None:
        return "-"
    points = (value.p50, value.p95, value.p99)
    return " / ".join(number(point, digits, factor=factor) for point in points)
