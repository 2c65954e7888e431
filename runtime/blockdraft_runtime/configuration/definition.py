"""Declarations of the fields of settings dataclasses."""

import dataclasses
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
KEY = "blockdraft"
"""Key of a field's metadata: its `Declaration`; for a group, the names that it leaves out."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """Properties of a setting beside its type and its default."""

    help: str  # what it means, in a few words that need no full stop
    # Name of the flag without dashes; None takes the field's name, with hyphens.
    flag: str | None = None
    alias: str | None = None  # another name with the same meaning: flag, variable and key in a file
    # Placeholder of the value in `--help`; None derives it from the type or the flag.
    metavar: str | None = None
    minimum: float | None = None  # least value, itself allowed
    above: float | None = None  # least value, itself not allowed
    maximum: float | None = None  # largest value, itself allowed
    separator: str | None = None  # between the items of a list that is written as one text
    distinct: bool = False  # whether a list must not have an item twice
    # Converts a text to a value where the type alone does not determine how.
    parse: Callable[[str], Any] | None = None
    common: bool = False  # whether `--help` shows it where others are left to `--help-all`

    def check(self, kind: Any, value: Any, source: str) -> None:
        """Raise `ValueError` for a value that its type refuses, or a number outside its range."""
        allowed = choices(kind)
        if allowed and value not in allowed:
            words = " or ".join([", ".join(map(str, allowed[:-1])), str(allowed[-1])])
            raise ValueError(f"{source} must be {words}, got {value!r}")
        if not isinstance(value, int | float) or isinstance(value, bool):
            return
        below = self.minimum is not None and not value >= self.minimum
        below |= self.above is not None and not value > self.above
        if not below and (self.maximum is None or value <= self.maximum):
            return
        limits = (("at least", self.minimum), ("above", self.above), ("at most", self.maximum))
        words = " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
        raise ValueError(f"{source} must be {words}, got {value:g}")


def setting(default: T, help: str, **options: Any) -> T:
    """Declare a field that can be set from outside; `options` are those of `Declaration`."""
    declared: T = dataclasses.field(default=default, metadata={KEY: Declaration(help, **options)})
    return declared


def required(help: str, **options: Any) -> Any:
    """Declare a field that must be set from outside; `options` are those of `Declaration`."""
    return dataclasses.field(metadata={KEY: Declaration(help, **options)})


def group(factory: Callable[[], T], *, without: Sequence[str] = ()) -> T:
    """Declare a field that holds further settings, with the defaults that `factory` makes.

    Settings named in `without` cannot be set here, because something else decides them.
    """
    declared: T = dataclasses.field(default_factory=factory, metadata={KEY: frozenset(without)})
    return declared


def optional_group() -> Any:
    """Declare a group that is None unless one of its settings is given."""
    return dataclasses.field(default=None, metadata={KEY: frozenset()})


def check(settings: Any) -> None:
    """Check the numbers and choices of settings, field by field; for `__post_init__`."""
    hints = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        declaration = field.metadata.get(KEY)
        if isinstance(declaration, Declaration):
            declaration.check(hints[field.name], getattr(settings, field.name), field.name)


def choices(kind: Any) -> tuple[Any, ...]:
    """Return the values of a `Literal`; none for any other type."""
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether None was part of it."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return typing.Union[tuple(kinds)], True  # noqa: UP007 -- made of a list
