"""A service under load as a picture: throughput against latency, and one process against three."""

from collections.abc import Sequence
from pathlib import Path

# Figures made without pyplot draw with Agg, on any machine and without global state.
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockdraft_bench.serve.split import SideSummary, SplitSummary
from blockdraft_bench.serve.summary import LoadSummary

TITLES = {"closed": "closed loop, requests in flight", "open": "open loop, requests per second"}
BAR_WIDTH = 0.4
MARGIN = 1.15


def draw_serve(results: Sequence[LoadSummary], split: Sequence[SplitSummary], path: Path) -> None:
    """Write a PNG: a panel for each kind of load, and one for the split, as far as measured.

    Args:
        results: One for each load and method.
        split: One for each concurrency.
        path: Where to.
    """
    modes = [mode for mode in TITLES if any(result.mode == mode for result in results)]
    panels = max(1, len(modes) + bool(split))
    figure = Figure(figsize=(1 + 5 * panels, 4.5), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for mode, panel in zip(modes, axes, strict=False):
        _draw_load(panel, [result for result in results if result.mode == mode])
        panel.set_title(TITLES[mode])
    if split:
        _draw_split(axes[-1], split)
    figure.savefig(path, dpi=150)


def _draw_load(axes: Axes, results: Sequence[LoadSummary]) -> None:
    """Draw a curve for each method, a point for each load."""
    drawn: list[tuple[float, float]] = []
    for method in dict.fromkeys(result.method for result in results):
        points = sorted(
            (result.load, result.latency_seconds.p50, result.output_tokens_per_second)
            for result in results
            if result.method == method and result.latency_seconds is not None
        )
        latencies = [latency for _, latency, _ in points]
        speeds = [speed for _, _, speed in points]
        axes.plot(latencies, speeds, marker="o", label=method)
        for load, latency, speed in points:
            axes.annotate(f"{load:g}", (latency, speed), (4, 4), textcoords="offset points")
        drawn += zip(latencies, speeds, strict=True)
    if drawn:  # Nothing is if every request failed. Room for the numbers beside the points.
        axes.set_xlim(0.0, MARGIN * max(latency for latency, _ in drawn))
        axes.set_ylim(0.0, MARGIN * max(speed for _, speed in drawn))
    axes.set_xlabel("latency p50, seconds")
    axes.set_ylabel("output tokens per second")
    axes.legend()


def _draw_split(axes: Axes, split: Sequence[SplitSummary]) -> None:
    """Draw two bars for each concurrency."""
    sides: tuple[tuple[str, float, list[SideSummary]], ...] = (
        ("one process", -BAR_WIDTH / 2, [summary.one_process for summary in split]),
        ("three processes", BAR_WIDTH / 2, [summary.three_processes for summary in split]),
    )
    for label, shift, summaries in sides:
        speeds = [side.tokens_per_second for side in summaries]
        edges = [side.ci95 or (side.tokens_per_second,) * 2 for side in summaries]
        axes.bar(
            [index + shift for index in range(len(split))],
            speeds,
            BAR_WIDTH,
            yerr=[
                [max(0.0, s - low) for s, (low, _) in zip(speeds, edges, strict=True)],
                [max(0.0, high - s) for s, (_, high) in zip(speeds, edges, strict=True)],
            ],
            capsize=3,
            label=label,
        )
    axes.set_xticks(range(len(split)), [str(summary.concurrency) for summary in split])
    axes.set_xlabel("sequences at a time")
    axes.set_ylabel("tokens per second of a sequence")
    axes.set_title("the cost of three processes")
    axes.legend()
