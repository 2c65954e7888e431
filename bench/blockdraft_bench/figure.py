"""The picture of a measurement: one of its columns over another, an element for each combination.

Figures are made without pyplot: they draw with Agg, on any machine and without global state.
"""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from blockdraft_bench.result import Row
from blockdraft_bench.statistics import Estimate

BAR_SPACE = 0.8


def draw(rows: Sequence[Row], x: str, y: str, by: Sequence[str], *, log: bool = False) -> Figure:
    """Draw bars over names, or curves over numbers; those of one colour share the columns `by`.

    Rows that have no number are left out. Intervals and quartiles are drawn, too.
    """
    series: dict[str, list[Row]] = {}
    for row in rows:
        if row[y] is not None:
            label = ", ".join(f"{name} {_short(row[name])}" for name in by)
            series.setdefault(label, []).append(row)
    places = list(dict.fromkeys(row[x] for row in rows))
    named = bool(places) and isinstance(places[0], str)
    figure = Figure(figsize=(4 + 0.6 * len(places), 4.5), layout="constrained")
    axes = figure.subplots()
    width = BAR_SPACE / max(1, len(series))
    for index, (label, own) in enumerate(series.items()):
        values = [value_and_range(row[y]) for row in own]
        middles = [value for value, _, _ in values]
        ranges = [[below for _, below, _ in values], [above for _, _, above in values]]
        if named:
            shift = (index - (len(series) - 1) / 2) * width
            spots = [places.index(row[x]) + shift for row in own]
            axes.bar(spots, middles, width, yerr=ranges, capsize=3, label=label)
        else:
            own_places = [row[x] for row in own]
            axes.errorbar(own_places, middles, yerr=ranges, marker="o", capsize=3, label=label)
    if named:
        axes.set_xticks(range(len(places)), places, rotation=45, ha="right")
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
    axes.set_xlabel(x.replace("_", " "))
    axes.set_ylabel(y.replace("_", " "))
    if by and series:
        axes.legend(fontsize="small")
    return figure


def value_and_range(number: Any) -> tuple[float, float, float]:
    """Return a number, and how far its interval or quartiles reach below and above it.

    NaN where there is none: a range of length 0 would look like certainty.
    """
    if isinstance(number, Estimate):
        value, edges = number.value or 0.0, number.ci95
    elif isinstance(number, dict):
        value, edges = number["median"], number["quartiles"]
    else:
        value, edges = float(number), None
    low, high = edges or (math.nan, math.nan)
    # A percentile interval can miss its own value; a range cannot be negative.
    return value, value - min(low, value), max(high, value) - value


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
