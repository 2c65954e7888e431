"""A service in a report: throughput against latency is drawn."""

from collections.abc import Iterable, Sequence
from functools import partial

from blockdraft_bench.report.section import Panel, Section
from blockdraft_bench.serve.figure import draw_load
from blockdraft_bench.serve.report import ServeReport, markdown
from blockdraft_bench.serve.summary import LoadSummary


def _panel(reports: Sequence[ServeReport]) -> Panel | None:
    curves: dict[str, list[LoadSummary]] = {}
    for row in (row for report in reports for row in report.results):
        if row.latency_seconds is not None:
            curves.setdefault(f"{row.method}, {row.mode} loop", []).append(row)
    draw = partial(draw_load, curves)
    return Panel("load", "Throughput against latency", draw) if curves else None


def _keys(report: ServeReport) -> Iterable[str]:
    yield from (f"{row.level}, {row.method}" for row in report.results)
    yield from (f"one process against three, {row.concurrency} at a time" for row in report.split)


SERVE = Section("A service under load", ServeReport, markdown, _panel, _keys)
