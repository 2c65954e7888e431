"""The result of a measurement: named facts and rows of numbers, as JSON, Markdown and a picture.

In JSON an `Estimate` NAME stands as `NAME`, `NAME_ci95` and `NAME_completions` side by side, so
that a reader of the file gets plain numbers. Figures are made without pyplot: they draw with Agg,
on any machine and without global state.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from matplotlib.figure import Figure

from blockdraft_bench.statistics import Estimate

ResultRow = dict[str, Any]
Cell = str | int | float | Estimate | None
INTERVALS_NOTE = "Brackets hold 95 % intervals and n, the number of completions they rest on."
BAR_SPACE = 0.8


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a measurement: facts, such as its target, rows, a page and a figure."""

    facts: Mapping[str, Any]
    results: Sequence[ResultRow]
    page: str
    figure: Figure | None


def to_json(fields: Mapping[str, Any]) -> str:
    """Return indented JSON; numbers that are not finite are refused: they should be None."""
    return json.dumps(_spread(fields), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _spread(value: Any) -> Any:
    """Return a JSON value with the parts of every estimate side by side."""
    if isinstance(value, list | tuple):
        return [_spread(item) for item in value]
    if not isinstance(value, Mapping):
        return msgspec.to_builtins(value)
    spread: ResultRow = {}
    for name, item in value.items():
        if isinstance(item, Estimate):
            spread |= {name: item.value, f"{name}_ci95": item.ci95}
            spread[f"{name}_completions"] = item.completions
        else:
            spread[name] = _spread(item)
    return spread


def page(*parts: str) -> str:
    """Return paragraphs, tables and headings, a blank line between; empty ones are left out."""
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def bullets(items: Iterable[str]) -> str:
    """Return a list in Markdown; empty if there are no items."""
    return "\n".join(f"- {item}" for item in items)


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table in Markdown, empty without rows; `number` formats fractions and estimates."""
    body = [[cell if isinstance(cell, str) else _text(cell) for cell in row] for row in rows]
    if not body:
        return ""
    lines = [headings, ["---"] * len(headings), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(
    value: float | Estimate | None, digits: int = 2, unit: str = "", *, factor: float = 1.0
) -> str:
    """Return a number times `factor`, with its interval if it has one; a dash for None."""
    estimate = value if isinstance(value, Estimate) else Estimate(value, None, 0)
    if estimate.value is None:
        return "-"
    text = f"{factor * estimate.value:.{digits}f}{unit}"
    if estimate.ci95 is None:
        return text
    edges = ", ".join(f"{factor * edge:.{digits}f}" for edge in estimate.ci95)
    return f"{text} [{edges}; n = {estimate.completions}]"


def share(value: float | None) -> str:
    """Return a share as a percentage; a dash for None."""
    return "-" if value is None else f"{value:.1%}"


def _text(value: int | float | Estimate | None) -> str:
    return str(value) if isinstance(value, int) else number(value)


def draw(
    rows: Sequence[ResultRow], x: str, y: str, by: Sequence[str], *, log: bool = False
) -> Figure:
    """Draw bars over names, or curves over numbers; those of one colour share the columns `by`.

    Rows that have no number are left out. Intervals and quartiles are drawn, too.
    """
    series: dict[str, list[ResultRow]] = {}
    for row in rows:
        if row[y] is not None:
            label = ", ".join(f"{name} {_short(row[name])}" for name in by)
            series.setdefault(label, []).append(row)
    places = list(dict.fromkeys(row[x] for row in rows))
    named = bool(places) and isinstance(places[0], str)
    figure = Figure(figsize=(4 + 0.6 * len(places), 4.5), layout="constrained")
    axes = figure.subplots()
    width = BAR_SPACE / max(1, len(series))
    for index, (label, members) in enumerate(series.items()):
        values = [value_and_range(row[y]) for row in members]
        middles = [value for value, _, _ in values]
        ranges = [[below for _, below, _ in values], [above for _, _, above in values]]
        if named:
            shift = (index - (len(series) - 1) / 2) * width
            spots = [places.index(row[x]) + shift for row in members]
            axes.bar(spots, middles, width, yerr=ranges, capsize=3, label=label)
        else:
            spots = [row[x] for row in members]
            axes.errorbar(spots, middles, yerr=ranges, marker="o", capsize=3, label=label)
    if named:
        axes.set_xticks(range(len(places)), places, rotation=45, ha="right")
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
    axes.set_xlabel(x.replace("_", " "))
    axes.set_ylabel(y.replace("_", " "))
    if by and series:
        # Above the axes: within them it would hide bars.
        figure.legend(loc="outside upper center", ncols=2, fontsize="small")
    return figure


def value_and_range(measured: Any) -> tuple[float, float, float]:
    """Return a number, and how far its interval or quartiles reach below and above it.

    NaN where there is none: a range of length 0 would look like certainty.
    """
    if isinstance(measured, Estimate):
        value, edges = measured.value or 0.0, measured.ci95
    elif isinstance(measured, dict):
        value, edges = measured["median"], measured["quartiles"]
    else:
        value, edges = float(measured), None
    low, high = edges or (math.nan, math.nan)
    # A percentile interval can miss its own value; a range cannot be negative.
    return value, value - min(low, value), max(high, value) - value


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
