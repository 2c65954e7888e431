"""The style of all figures: sizes, bars with intervals, line styles, axes.

Figures are made without pyplot: they draw with Agg, on any machine and without global state.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockdraft_bench.common.statistics import Estimate

LINE_STYLES = ("-", "--", ":", "-.")
BAR_SPACE = 0.8
DOTS_PER_INCH = 150

# A number for some of the places on an axis.
Bars = Mapping[str, Estimate]


def panels(
    count: int, *, columns: int | None = None, size: tuple[float, float] = (6.0, 4.5), **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, in rows; places without a panel stay empty.

    Args:
        count: How many panels, at least 1.
        columns: How many stand in a row; None for all.
        size: Inches of a panel.
        **shared: As for matplotlib's `subplots`, such as `sharex=True`.
    """
    width, height = size
    columns = min(count, columns or count)
    rows = -(-count // columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for unused in places[count:]:
        unused.set_axis_off()
    return figure, places[:count]


def save(figure: Figure, path: Path) -> None:
    """Write a PNG."""
    figure.savefig(path, dpi=DOTS_PER_INCH)


def grouped_bars(
    axes: Axes, groups: Sequence[str], series: Mapping[str, Bars], **styles: Sequence[Any]
) -> None:
    """Draw bars with their intervals, side by side in groups along the x axis.

    Args:
        axes: Where to.
        groups: Names of the groups, in order.
        series: By label, its bar of each group that it has one for.
        **styles: As for matplotlib's `bar`, one value for each of the series.
    """
    width = BAR_SPACE / max(1, len(series))
    for index, (label, bars) in enumerate(series.items()):
        shift = (index - (len(series) - 1) / 2) * width
        axes.bar(
            [groups.index(group) + shift for group in bars],
            [bar.value or 0.0 for bar in bars.values()],
            width,
            yerr=error_bars(list(bars.values())),
            capsize=3,
            label=label,
            **{name: values[index] for name, values in styles.items()},
        )
    axes.set_xticks(range(len(groups)), groups, rotation=45, ha="right")


def error_bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Return how far the intervals reach below and above the values; NaN where there is none."""
    below, above = [], []
    for estimate in estimates:
        value = estimate.value or 0.0
        low, high = estimate.ci95 or (math.nan, math.nan)
        # A percentile interval can miss its own value; a bar cannot be negative.
        below.append(value - min(low, value))
        above.append(max(high, value) - value)
    return [below, above]


def plain_level(axes: Axes, label: str = "") -> None:
    """Draw the level of plain decoding, 1."""
    axes.axhline(1.0, color="grey", linewidth=0.8, label=label)


def curve_style(modelled: bool, color: str) -> dict[str, Any]:
    """Return how curves are drawn: measured ones solid and filled, modelled dash-dotted, hollow."""
    return {
        "linestyle": "-." if modelled else "-",
        "marker": "o",
        "markerfacecolor": "none" if modelled else color,
        "color": color,
    }


def powers_of_two(axes: Axes) -> None:
    """Make the x axis one of powers of two, with a grid."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
