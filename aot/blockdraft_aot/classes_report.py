"""Classes of rounding as text and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

from blockdraft_aot.classes import Padding, RoundingClass
from blockdraft_aot.modelled import Modelled
from blockdraft_aot.rounding import Difference

_FIRST_FEW = 3


def classes_text(
    classes: Sequence[RoundingClass], paddings: Sequence[Padding], topology: str
) -> Iterator[str]:
    """Yield lines: each class and how it differs from the one before, then what padding costs."""
    yield "classes of rounding, as far as the programs show (rows x tokens; 1.1 and 1.2 differ in"
    yield "the order of passes only, which need not round differently):"
    previous = ""
    for each in classes:
        yield f"  {each.label}: {' '.join(_shape(program) for program in each.programs)}"
        yield from _differences(each.differences, previous, each.label)
        previous = each.label
    for padding in paddings:
        padded, unpadded = padding.padded, padding.unpadded
        yield (
            f"padding plain steps of {_shape(unpadded)} to {padded.program.tokens} tokens on "
            f"{topology}: {padded.seconds * 1e3:.3f} ms instead of "
            f"{unpadded.seconds * 1e3:.3f} ({padding.cost:+.1%})"
        )
        yield from _differences(padding.differences, "unpadded", "padded")


def classes_json(classes: Sequence[RoundingClass]) -> list[dict[str, Any]]:
    """Return each class: its programs, its sums, and all that differs from the class before."""
    return [
        {
            "label": each.label,
            "programs": [
                {"rows": program.program.rows, "tokens": program.program.tokens}
                for program in each.programs
            ],
            "sums": [{"name": one.name, "manner": one.manner} for one in each.rounding.sums],
            "differences_from_previous": [_difference(one) for one in each.differences],
        }
        for each in classes
    ]


def paddings_json(paddings: Sequence[Padding]) -> list[dict[str, Any]]:
    """Return what padding costs for each number of rows, and what it changes."""
    return [
        {
            "rows": each.unpadded.program.rows,
            "tokens": each.unpadded.program.tokens,
            "padded_tokens": each.padded.program.tokens,
            "modelled_seconds": each.unpadded.seconds,
            "padded_modelled_seconds": each.padded.seconds,
            "differences": [_difference(one) for one in each.differences],
        }
        for each in paddings
    ]


def _shape(each: Modelled) -> str:
    return f"{each.program.rows}x{each.program.tokens}"


def _differences(found: Sequence[Difference], first: str, second: str) -> Iterator[str]:
    for each in found[:_FIRST_FEW]:
        doubt = " (passes only)" if each.order_only else ""
        yield f"     {each.name}{doubt}"
        yield f"       {first}: {each.first or 'none'}"
        yield f"       {second}: {each.second or 'none'}"
    if len(found) > _FIRST_FEW:
        yield f"     and {len(found) - _FIRST_FEW} more"


def _difference(each: Difference) -> dict[str, Any]:
    return {
        "name": each.name,
        "before": each.first,
        "after": each.second,
        "order_only": each.order_only,
    }
