"""What every measurement finds: named facts and rows of numbers, as JSON and as Markdown tables.

In JSON an `Estimate` NAME stands as `NAME`, `NAME_ci95` and `NAME_answers` side by side, and a
tuple of them as three lists, so that a number is a number to whoever reads the file.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from blockdraft_bench.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
Cell = str | int | float | Estimate | None
INTERVALS_NOTE = "Brackets hold 95 % intervals and n, the number of answers they rest on."


@dataclass(frozen=True, slots=True)
class Result:
    """What a measurement found.

    Attributes:
        facts: What it is of, such as the target, and whatever is no row; dataclasses, mappings,
            lists and numbers.
        results: Its rows.
        page: Markdown, for people.
        figure: The same as a picture.
    """

    facts: Mapping[str, Any]
    results: Sequence[Row]
    page: str
    figure: "Figure | None" = field(default=None)


def to_json(fields: Mapping[str, Any]) -> str:
    """Return JSON as people read it; refuses numbers that are not finite, which should be None."""
    return json.dumps(_spread(fields), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _spread(value: Any) -> Any:
    """Return a JSON value with the parts of every estimate side by side."""
    if isinstance(value, list | tuple):
        return [_spread(item) for item in value]
    if not isinstance(value, Mapping):
        return msgspec.to_builtins(value)
    spread: Row = {}
    for name, item in value.items():
        several = isinstance(item, tuple) and item and isinstance(item[0], Estimate)
        if isinstance(item, Estimate):
            parts: list[Any] = [item.value, item.ci95, item.answers]
        elif several:
            parts = [list(part) for part in zip(*map(_parts, item), strict=True)]
        else:
            spread[name] = _spread(item)
            continue
        spread |= zip((name, f"{name}_ci95", f"{name}_answers"), parts, strict=True)
    return spread


def _parts(found: Estimate) -> tuple[Any, ...]:
    return found.value, found.ci95, found.answers


def page(*parts: str) -> str:
    """Return paragraphs, tables and headings, a blank line between; empty ones are left out."""
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def bullets(items: Iterable[str]) -> str:
    """Return a list; nothing of no items."""
    return "\n".join(f"- {item}" for item in items)


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table, nothing if it has no rows; what is no text or whole number by `number`."""
    body = [[cell if isinstance(cell, str) else _text(cell) for cell in row] for row in rows]
    if not body:
        return ""
    lines = [headings, ["---"] * len(headings), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(
    value: float | Estimate | None, digits: int = 2, unit: str = "", *, factor: float = 1.0
) -> str:
    """Return a number times `factor`, with its interval if it has one; a dash for None."""
    found = value if isinstance(value, Estimate) else Estimate(value, None, 0)
    if found.value is None:
        return "-"
    text = f"{factor * found.value:.{digits}f}{unit}"
    if found.ci95 is None:
        return text
    edges = ", ".join(f"{factor * edge:.{digits}f}" for edge in found.ci95)
    return f"{text} [{edges}; n = {found.answers}]"


def share(value: float | None) -> str:
    """Return a share as a percentage; a dash for None."""
    return "-" if value is None else f"{value:.1%}"


def _text(value: int | float | Estimate | None) -> str:
    return str(value) if isinstance(value, int) else number(value)
