"""Decoding speed in a report: greedy speed-ups are drawn, beside published ones."""

from collections.abc import Iterable, Sequence
from functools import partial

from matplotlib.axes import Axes

from blockdraft_bench.common.answers import PLAIN
from blockdraft_bench.common.figure import grouped_bars, plain_level
from blockdraft_bench.decode.report import DecodeReport, MethodSpeed, markdown
from blockdraft_bench.report.published import PUBLISHED, SPEED_MARK
from blockdraft_bench.report.section import Panel, Section, coolest


def greedy_drafted(reports: Iterable[DecodeReport]) -> list[MethodSpeed]:
    """Return the results of draft methods at the lowest temperature."""
    rows = coolest(row for report in reports for row in report.results)
    return [row for row in rows if row.method != PLAIN]


def draw_speedups(rows: Sequence[MethodSpeed], axes: Axes) -> None:
    """Draw a bar for each dataset and method, and what was published for DFlash."""
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    methods = dict.fromkeys(row.method for row in rows)
    grouped_bars(
        axes,
        datasets,
        {m: {row.dataset: row.speedup for row in rows if row.method == m} for m in methods},
    )
    published = [speed for speed in PUBLISHED.tpu_v5p_speeds if speed.dataset in datasets]
    if published:
        axes.plot(
            [datasets.index(speed.dataset) for speed in published],
            [speed.speedup for speed in published],
            linestyle="none",
            marker="D",
            markerfacecolor="none",
            color="black",
            label=f"published: {SPEED_MARK}",
        )
    plain_level(axes)
    axes.set_ylabel(f"speed-up at T = {rows[0].temperature:g}")
    axes.margins(y=0.2)  # for the legend
    axes.legend(fontsize="x-small")


def _panel(reports: Sequence[DecodeReport]) -> Panel | None:
    drafted = greedy_drafted(reports)
    draw = partial(draw_speedups, drafted)
    return Panel("speedup", "Speed-up over plain decoding", draw) if drafted else None


def _keys(report: DecodeReport) -> Iterable[str]:
    return (f"{row.dataset}, {row.method}, T = {row.temperature:g}" for row in report.results)


DECODE = Section("Decoding speed", DecodeReport, markdown, _panel, _keys)
