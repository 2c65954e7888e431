"""A service under load as a picture: throughput against latency, and one process against three."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockdraft_bench.common.figure import grouped_bars, panels
from blockdraft_bench.common.statistics import Estimate
from blockdraft_bench.serve.report import ServeReport
from blockdraft_bench.serve.split import SideSummary, SplitSummary
from blockdraft_bench.serve.summary import LoadSummary

TITLES = {"closed": "closed loop, requests in flight", "open": "open loop, requests per second"}
MARGIN = 1.15


def draw(report: ServeReport) -> Figure:
    """Return a panel for each kind of load, and one for the split, as far as measured."""
    modes = [mode for mode in TITLES if any(row.mode == mode for row in report.results)]
    figure, axes = panels(max(1, len(modes) + bool(report.split)), size=(5.3, 4.5))
    for mode, panel in zip(modes, axes, strict=False):
        curves: dict[str, list[LoadSummary]] = {}
        for row in report.results:
            if row.mode == mode:
                curves.setdefault(row.method, []).append(row)
        draw_load(curves, panel)
        panel.set_title(TITLES[mode])
    if report.split:
        _draw_split(axes[-1], report.split)
    return figure


def draw_load(curves: Mapping[str, Sequence[LoadSummary]], axes: Axes) -> None:
    """Draw throughput against latency: a point for each level of load, open loops dashed.

    Args:
        curves: The points of each curve by its label; those without a whole answer are left out.
        axes: Where to.
    """
    drawn: list[tuple[float, float]] = []
    for label, rows in curves.items():
        points = sorted(
            (row.load, row.latency_seconds.p50, row.output_tokens_per_second)
            for row in rows
            if row.latency_seconds is not None
        )
        latencies = [latency for _, latency, _ in points]
        speeds = [speed for _, _, speed in points]
        style = "-" if rows[0].mode == "closed" else "--"
        axes.plot(latencies, speeds, style, marker="o", label=label)
        for load, latency, speed in points:
            axes.annotate(f"{load:g}", (latency, speed), (4, 4), textcoords="offset points")
        drawn += zip(latencies, speeds, strict=True)
    if drawn:  # Nothing is if every request failed. Room for the numbers beside the points.
        axes.set_xlim(0.0, MARGIN * max(latency for latency, _ in drawn))
        axes.set_ylim(0.0, MARGIN * max(speed for _, speed in drawn))
    axes.set_xlabel("latency p50, seconds")
    axes.set_ylabel("output tokens per second")
    axes.legend(fontsize="small")


def _draw_split(axes: Axes, split: Sequence[SplitSummary]) -> None:
    """Draw two bars for each number of prompts at a time."""

    def bar(side: SideSummary) -> Estimate:
        return Estimate(side.tokens_per_second, side.ci95)

    grouped_bars(
        axes,
        [str(row.concurrency) for row in split],
        {
            "one process": {str(row.concurrency): bar(row.one_process) for row in split},
            "three processes": {str(row.concurrency): bar(row.three_processes) for row in split},
        },
    )
    axes.set_xlabel("sequences at a time")
    axes.set_ylabel("tokens per second of a sequence")
    axes.set_title("the cost of three processes")
    axes.legend()
