"""Processors on paper: what the JSON report holds, and the rows of docs/benchmarks.md."""

from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.markdown import number, page, table
from blockdraft_bench.common.provenance import Drafter, Report, Target
from blockdraft_models.processor import Processor


@dataclass(frozen=True, slots=True)
class ProcessorRow:
    """What a processor does with some of its cores.

    Attributes:
        processor: It, and how many cores were used.
        auto: The element type that `--dtype auto` chooses, that of the answers.
        bfloat16_speedup: How many times as fast as float32 a trial of products was.
        product_forms: How bfloat16 is multiplied, by width of the weight.
        self_test: What it found in bfloat16, after padding.
        plain_tokens_per_second: Median over rounds, after the first token; None if no answer had
            more.
        drafted_tokens_per_second: Likewise.
        identical: Whether all answers, drafted or plain, have the same tokens.
    """

    target: Target
    drafter: Drafter
    processor: Processor
    auto: str
    bfloat16_speedup: float
    product_forms: tuple[str, ...]
    self_test: str
    plain_tokens_per_second: float | None
    drafted_tokens_per_second: float | None
    identical: bool

    @property
    def ratio(self) -> float | None:
        """Speed with drafting over speed without."""
        plain, drafted = self.plain_tokens_per_second, self.drafted_tokens_per_second
        return drafted / plain if plain and drafted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorReport(Report):
    """The whole report.

    Attributes:
        date: In the form 2026-11-25.
        rows: One for each number of cores.
    """

    benchmark: Literal["processor"] = "processor"
    date: str
    rows: tuple[ProcessorRow, ...]


def markdown(report: ProcessorReport) -> str:
    """Return the table; its rows are as those of docs/benchmarks.md."""
    head, dash, rest = (report.commit or "unknown").partition("-")
    commit = f"{head[:7]}{dash}{rest}"
    rows = [
        {
            "Date": report.date,
            "Commit": commit,
            "Processor": row.processor.name,
            "bfloat16 instructions": ", ".join(row.processor.instructions) or "none",
            "Cores": row.processor.cores,
            "jaxlib": report.versions["jaxlib"] or "unknown",
            "`auto` is": row.auto,
            "bfloat16 / float32": number(row.bfloat16_speedup, unit="x"),
            "Forms of products": ", ".join(row.product_forms),
            "Self-test": row.self_test,
            "plain tok/s": number(row.plain_tokens_per_second, 1),
            "drafted tok/s": number(row.drafted_tokens_per_second, 1),
            "drafted / plain": number(row.ratio, unit="x"),
            "identical": "yes" if row.identical else "**no**",
        }
        for row in report.rows
    ]
    return page(table([*rows[0]], ([*row.values()] for row in rows)))
