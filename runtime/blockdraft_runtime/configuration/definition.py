"""What a field of a settings dataclass says of itself."""

import dataclasses
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
KEY = "blockdraft"
"""Where the metadata of a field keeps its declaration; of a group, the names it leaves out."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is said of a setting beside its type and its default."""

    help: str  # what it means, in a few words that need no full stop
    # Name of the flag without dashes; None takes the field's name, with hyphens.
    flag: str | None = None
    alias: str | None = None  # another name with the same meaning: flag, variable and key in a file
    # What stands for the value in `--help`; None takes a word for its type, or the last one of the
    # flag.
    metavar: str | None = None
    minimum: float | None = None  # least value, itself allowed
    above: float | None = None  # least value, itself not allowed
    maximum: float | None = None  # largest value, itself allowed
    separator: str | None = None  # lets a list be one text with this between its items
    distinct: bool = False  # whether a list must not have an item twice
    # Makes a value of a text where the type alone does not say how.
    parse: Callable[[str], Any] | None = None
    common: bool = False  # whether `--help` shows it where others are left to `--help-all`

    def check(self, kind: Any, value: Any, source: str) -> None:
        """Check that a value is one that its type allows, and a number in its range."""
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


def setting(default: T, help: str, **more: Any) -> T:
    """Declare a field that can be set from outside; for `more` see `Declaration`."""
    declared: T = field(default=default, metadata={KEY: Declaration(help, **more)})
    return declared


def required(help: str, **more: Any) -> Any:
    """Declare a field that must be set from outside; for `more` see `Declaration`."""
    return field(metadata={KEY: Declaration(help, **more)})


def group(factory: Callable[[], T], *, without: Sequence[str] = ()) -> T:
    """Declare a field that holds further settings, with the defaults that `factory` makes.

    Those named in `without` cannot be set here, because something else decides them.
    """
    declared: T = field(default_factory=factory, metadata={KEY: frozenset(without)})
    return declared


def optional_group() -> Any:
    """Declare a group that is None unless one of its settings is given."""
    return field(default=None, metadata={KEY: frozenset()})


def check(settings: Any) -> None:
    """Check that numbers are in their ranges and choices are among theirs; for `__post_init__`."""
    hints = typing.get_type_hints(type(settings))
    for one in dataclasses.fields(settings):
        declaration = one.metadata.get(KEY)
        if isinstance(declaration, Declaration):
            declaration.check(hints[one.name], getattr(settings, one.name), one.name)


def choices(kind: Any) -> tuple[Any, ...]:
    """Return the values that a type allows one by one; none if it is no `Literal`."""
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether None was part of it."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return typing.Union[tuple(kinds)], True  # noqa: UP007 -- made of a list
