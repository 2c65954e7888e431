"""Decoding speed on paper: what the JSON report holds, and the page of it."""

from dataclasses import dataclass
from typing import Any, Literal

from blockdraft_bench.common.answers import PLAIN
from blockdraft_bench.common.markdown import INTERVALS_NOTE, Cell, number, page, share, table
from blockdraft_bench.common.provenance import Report
from blockdraft_bench.common.statistics import Estimate


@dataclass(frozen=True, slots=True)
class Divergence:
    """An answer that is not that of plain decoding.

    Attributes:
        position: Index of the first token that differs, from 0 at the start of the answer.
        logit_margin: Margin of the target's choice there; see `divergence`.
    """

    sample: str
    position: int
    logit_margin: float
    temperature: float


@dataclass(frozen=True, slots=True)
class MethodSpeed:
    """How fast one method decodes one dataset at one temperature; None where nothing tells.

    Attributes:
        method: Of drafting, or `PLAIN`.
        samples: Answers.
        tokens: Tokens of all answers, the first ones included.
        tpot_seconds: Time per token of an answer, the median over answers.
        tpot_seconds_quartiles: The first and the third quartile of the same.
        ttft_seconds: Time to the first token, the median over answers.
        tokens_per_second: All tokens over all seconds.
        speedup: Plain decoding's seconds per token over this method's.
        acceptance_length: Tokens gained per verification.
        acceptance_per_position: Share of the verifications of a proposal at least that long in
            which the token at that position was accepted, hence all before it.
        mean_draft_length: Tokens verified per verification.
        identical_share: Share of answers whose tokens are those of plain decoding.
        divergences: Where the others first differ.
    """

    dataset: str
    method: str
    temperature: float
    samples: int
    tokens: int
    tpot_seconds: float | None
    tpot_seconds_quartiles: tuple[float, float] | None
    ttft_seconds: float
    tokens_per_second: float | None
    speedup: Estimate
    acceptance_length: Estimate
    acceptance_per_position: tuple[float | None, ...]
    mean_draft_length: float | None
    identical_share: float
    divergences: tuple[Divergence, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodAverage:
    """One method at one temperature over all datasets, each counting the same.

    The speed-up is a geometric mean, the others are arithmetic ones.
    """

    method: str
    temperature: float
    speedup: Estimate
    acceptance_length: Estimate
    identical_share: float


@dataclass(frozen=True, slots=True)
class MethodDrafter:
    """The drafter of one method, and how many tokens a whole proposal of it has."""

    fingerprint: str
    trained: bool
    block_size: int
    draft_length: int


@dataclass(frozen=True, slots=True)
class DecodeFlags:
    """What was asked for; see the flags of `bench decode`."""

    datasets: tuple[str, ...]
    samples: int
    max_tokens: int
    max_prompt_tokens: int
    temperature: tuple[float, ...]
    draft_policy: str
    seed: int
    dtype: str
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport(Report):
    """The whole report.

    Attributes:
        drafters: What drafts, by method.
        settings: What was asked for.
        recompilations: Steps compiled while answers were timed; 0, or nothing was measured.
        results: One for each dataset, temperature and method, in this order.
        average: One for each method and temperature.
    """

    benchmark: Literal["decode"] = "decode"
    drafters: dict[str, MethodDrafter]
    settings: DecodeFlags
    recompilations: int
    results: tuple[MethodSpeed, ...]
    average: tuple[MethodAverage, ...]

    @staticmethod
    def upgraded(fields: dict[str, Any]) -> dict[str, Any]:
        """Return a report whose averages have estimates; they were mere numbers at first."""
        numbers = ("speedup", "acceptance_length")
        return {
            **fields,
            "average": [
                {**row, **{name: _as_estimate(row[name]) for name in numbers if name in row}}
                for row in fields.get("average", ())
            ],
        }


def _as_estimate(found: Any) -> Any:
    return found if isinstance(found, dict) else {"value": found}


def markdown(report: DecodeReport) -> str:
    """Return the page."""
    drafting = [m for m in dict.fromkeys(row.method for row in report.results) if m != PLAIN]
    headings = ["Dataset", "T", "Answers", "plain: TTFT ms", "TPOT ms", "tok/s"]
    for method in drafting:
        headings += [f"{method}: TTFT ms", "TPOT ms", "tok/s", "τ", "speed-up", "identical"]
    rows: list[list[Cell]] = []
    by_set: dict[tuple[str, float], dict[str, MethodSpeed]] = {}
    for row in report.results:
        by_set.setdefault((row.dataset, row.temperature), {})[row.method] = row
    for (dataset, temperature), speeds in by_set.items():
        plain = speeds[PLAIN]
        cells: list[Cell] = [dataset, f"{temperature:g}", plain.samples, *_speed_cells(plain)]
        for method in drafting:
            row = speeds[method]
            cells += [*_speed_cells(row), number(row.acceptance_length.value)]
            cells += [number(row.speedup, unit="x"), share(row.identical_share)]
        rows.append(cells)
    for temperature in dict.fromkeys(mean.temperature for mean in report.average):
        means = {mean.method: mean for mean in report.average if mean.temperature == temperature}
        cells = ["mean", f"{temperature:g}", "", "", "", ""]
        for method in drafting:
            mean = means[method]
            cells += ["", "", "", number(mean.acceptance_length), number(mean.speedup, unit="x")]
            cells.append(share(mean.identical_share))
        rows.append(cells)
    return page(_caption(report), table(headings, rows), _divergence_line(report.results))


def _caption(report: DecodeReport) -> str:
    settings = report.settings
    drafters = [
        f"{method} ({'trained' if drafter.trained else 'untrained'}, {drafter.fingerprint}, "
        f"blocks of {drafter.block_size})"
        for method, drafter in report.drafters.items()
    ]
    return (
        f"Target {report.target}, {settings.dtype}; drafters: {', '.join(drafters) or 'none'}; "
        f"{settings.draft_policy} policy; one answer at a time, of at most {settings.max_tokens} "
        f"tokens; {report.made_on}. {INTERVALS_NOTE}"
    )


def _divergence_line(results: tuple[MethodSpeed, ...]) -> str:
    margins = [d.logit_margin for row in results for d in row.divergences]
    drafted = sum(row.samples for row in results if row.method != PLAIN)
    if not drafted:
        return "No draft method was measured."
    if not margins:
        return "Every answer is that of plain decoding, token for token."
    return (
        f"{len(margins)} of {drafted} answers {'differs' if len(margins) == 1 else 'differ'} from "
        "plain decoding; the target's margin where they part is at most "
        f"{max(margins):.3g}."
    )


def _speed_cells(row: MethodSpeed) -> list[str]:
    return [
        number(row.ttft_seconds, 0, factor=1e3),
        number(row.tpot_seconds, 1, factor=1e3),
        number(row.tokens_per_second, 1),
    ]
