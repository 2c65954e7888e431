"""Acceptance as a picture: τ by dataset, and how acceptance falls along the block."""

from collections.abc import Sequence
from pathlib import Path

# Figures made without pyplot draw with Agg, on any machine and without global state.
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockdraft_bench.acceptance.statistics import DatasetAcceptance, Estimate

LINE_STYLES = ("-", "--", ":", "-.")
BAR_SPACE = 0.8


def draw_acceptance(results: Sequence[DatasetAcceptance], path: Path) -> None:
    """Write a PNG.

    Args:
        results: One for each dataset and temperature.
        path: Where to.
    """
    datasets = list(dict.fromkeys(result.dataset for result in results))
    figure = Figure(figsize=(6 + 1.1 * len(datasets), 4.5), layout="constrained")
    bars, curves = figure.subplots(1, 2)
    _draw_lengths(bars, results, datasets)
    _draw_positions(curves, results, datasets)
    figure.savefig(path, dpi=150)


def _draw_lengths(axes: Axes, results: Sequence[DatasetAcceptance], datasets: list[str]) -> None:
    """Draw a bar for each result, in groups by dataset."""
    temperatures = list(dict.fromkeys(result.temperature for result in results))
    width = BAR_SPACE / len(temperatures)
    for index, temperature in enumerate(temperatures):
        chosen = [r for r in results if r.temperature == temperature]
        shift = (index - (len(temperatures) - 1) / 2) * width
        axes.bar(
            [datasets.index(r.dataset) + shift for r in chosen],
            [r.acceptance_length.value or 0.0 for r in chosen],
            width,
            yerr=error_bars([r.acceptance_length for r in chosen]),
            capsize=3,
            label=f"T = {temperature:g}",
        )
    axes.axhline(1.0, color="grey", linewidth=0.8)  # what decoding without drafts gains
    axes.set_xticks(range(len(datasets)), datasets, rotation=45, ha="right")
    axes.set_ylabel("acceptance length τ, tokens per verification")
    axes.legend()


def _draw_positions(axes: Axes, results: Sequence[DatasetAcceptance], datasets: list[str]) -> None:
    """Draw a curve for each result: a colour for each dataset, a style for each temperature."""
    temperatures = list(dict.fromkeys(result.temperature for result in results))
    for result in results:
        shares = [estimate.value for estimate in result.per_position]
        known = [(k, share) for k, share in enumerate(shares, 1) if share is not None]
        axes.plot(
            [k for k, _ in known],
            [share for _, share in known],
            LINE_STYLES[temperatures.index(result.temperature) % len(LINE_STYLES)],
            marker=".",
            color=f"C{datasets.index(result.dataset) % 10}",
            label=f"{result.dataset}, T = {result.temperature:g}",
        )
    axes.set_ylim(0.0, 1.0)
    axes.set_xlabel("position in the block")
    axes.set_ylabel("share of verifications that accept it")
    axes.legend(fontsize="small")


def error_bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Return how far the intervals reach below and above the values."""
    below, above = [], []
    for estimate in estimates:
        value = estimate.value or 0.0
        low, high = estimate.ci95 or (value, value)
        # A percentile interval can miss its own value; a bar cannot be negative.
        below.append(max(0.0, value - low))
        above.append(max(0.0, high - value))
    return [below, above]
