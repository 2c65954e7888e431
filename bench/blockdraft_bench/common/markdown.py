"""Tables and pages in Markdown: what people read."""

from collections.abc import Iterable, Sequence

from blockdraft_bench.common.statistics import Estimate

Cell = str | int | float | Estimate | None
INTERVALS_NOTE = "Brackets hold 95 % intervals and n, the number of answers they rest on."


def page(*parts: str) -> str:
    """Return paragraphs, tables and headings, a blank line between; empty ones are left out."""
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def bullets(items: Iterable[str]) -> str:
    """Return a list; nothing of no items."""
    return "\n".join(f"- {item}" for item in items)


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table; nothing if it has no rows.

    Args:
        headings: One for each column.
        rows: Texts and whole numbers as they are, other values as `number` shows them.
    """
    body = [[value if isinstance(value, str) else _text(value) for value in row] for row in rows]
    if not body:
        return ""
    lines = [headings, ["---"] * len(headings), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(
    value: float | Estimate | None, digits: int = 2, unit: str = "", *, factor: float = 1.0
) -> str:
    """Return a number, with its interval if it has one; a dash for None.

    Args:
        value: The number.
        digits: Behind the point.
        unit: What follows the number, such as "x".
        factor: What to multiply it by first.
    """
    found = value if isinstance(value, Estimate) else Estimate(value)
    if found.value is None:
        return "-"
    text = f"{factor * found.value:.{digits}f}{unit}"
    if found.ci95 is None:
        return text
    edges = ", ".join(f"{factor * edge:.{digits}f}" for edge in found.ci95)
    return f"{text} [{edges}{'' if found.answers is None else f'; n = {found.answers}'}]"


def share(value: float | None) -> str:
    """Return a share as a percentage; a dash for None."""
    return "-" if value is None else f"{value:.1%}"


def _text(value: int | float | Estimate | None) -> str:
    return str(value) if isinstance(value, int) else number(value)
