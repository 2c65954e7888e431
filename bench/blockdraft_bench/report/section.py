"""How a measurement takes part in a report."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

from matplotlib.axes import Axes

from blockdraft_bench.common.provenance import Report

Kind = TypeVar("Kind", bound=Report)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of the figure.

    Attributes:
        name: Of its own file.
        title: Above it.
        draw: Draws it.
    """

    name: str
    title: str
    draw: Callable[[Axes], None]


def no_keys(report: Report) -> Iterable[str]:
    """Say that results of several files never contradict each other."""
    return ()


@dataclass(frozen=True, slots=True)
class Section(Generic[Kind]):
    """What a report shows of one measurement.

    Attributes:
        title: Heading of its pages.
        kind: What it wrote as JSON.
        markdown: The page of one file.
        panel: What is drawn of all files together, at least one; None if nothing can be.
        keys: What a file has results of, such that no other file may have results of the same.
    """

    title: str
    kind: type[Kind]
    markdown: Callable[[Kind], str]
    panel: Callable[[Sequence[Kind]], Panel | None]
    keys: Callable[[Kind], Iterable[str]] = no_keys


@runtime_checkable
class Tempered(Protocol):
    """A result at one temperature of the target."""

    @property
    def temperature(self) -> float:
        """The temperature."""


Row = TypeVar("Row", bound=Tempered)


def coolest(rows: Iterable[Row]) -> list[Row]:
    """Return the rows at the lowest temperature: greedy decoding, if that was measured."""
    rows = list(rows)
    lowest = min((row.temperature for row in rows), default=0.0)
    return [row for row in rows if row.temperature == lowest]
