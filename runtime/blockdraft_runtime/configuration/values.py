"""The settings of a dataclass: found by name, made of texts and of a file, and put together."""

import dataclasses
import math
import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass
from typing import Any, TypeVar

from blockdraft_runtime.configuration.definition import (
    KEY,
    Declaration,
    choices,
    without_none,
)

FieldPath = tuple[str, ...]
"""Names of the fields that lead from the outermost dataclass to a value."""

T = TypeVar("T")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a command. A value that means nothing is a ValueError naming its source."""

    name: str  # its flag without the dashes, which is also its key in a file
    paths: tuple[FieldPath, ...]  # where its value goes; several if parts of the settings share it
    kind: Any  # type of the value, without None; of one item if it is a list
    many: bool  # whether it is a list
    optional: bool  # whether it may be None
    default: Any  # value where nothing is said; MISSING if something must be
    declaration: Declaration  # what the declaration says besides

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and the alias that means the same."""
        return (
            (self.name,) if self.declaration.alias is None else (self.name, self.declaration.alias)
        )

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that it must be one of; none if it may be any of its type."""
        return choices(self.kind)

    @property
    def metavar(self) -> str:
        """What stands for the value in `--help`."""
        if self.declaration.metavar is not None:
            return self.declaration.metavar
        if self.choices:
            return "{" + ",".join(map(str, self.choices)) + "}"
        if self.paths[0][-1].endswith("_seconds"):
            return "SECONDS"
        return {int: "N", float: "X"}.get(self.kind, self.name.rpartition("-")[2].upper())

    def from_text(self, text: str, source: str) -> Any:
        """Return the value that a variable or a flag's single text means.

        A list is written as on a command line: items separated by blanks, quoted as in a shell.
        """
        if not self.many:
            return self._one(text, source)
        separator = self.declaration.separator
        return self.from_texts(text.split(separator) if separator else shlex.split(text), source)

    def from_texts(self, texts: Sequence[str], source: str) -> tuple[Any, ...]:
        """Return the list that several texts mean."""
        items = tuple(self._one(text, source) for text in texts)
        if self.declaration.distinct and len(set(items)) < len(items):
            raise ValueError(f"{source} has the same value twice")
        return items

    def from_file(self, value: object, source: str) -> Any:
        """Return the value that one of a TOML file means."""
        if not self.many:
            return self._one(self._text_of_file(value, source), source)
        if not isinstance(value, list):
            raise ValueError(f"{source} must be a list, got {value!r}")
        return self.from_texts([self._text_of_file(item, source) for item in value], source)

    def to_texts(self, value: Any) -> list[str]:
        """Return the texts that mean a value: one, or one for each item of a list."""
        texts = [_text(item) for item in (value if self.many else (value,))]
        return [self.declaration.separator.join(texts)] if self.declaration.separator else texts

    def _one(self, text: str, source: str) -> Any:
        # Where unset is not the default there must be a word for it.
        if self.optional and self.default is not None and text == "none":
            return None
        value = self._parse(text, source)
        self.declaration.check(self.kind, value, source)
        return value

    def _parse(self, text: str, source: str) -> Any:
        if self.declaration.parse is not None:
            try:
                return self.declaration.parse(text)
            except ValueError as error:
                raise ValueError(f"{source}: {error}") from error
        if self.choices:
            return {str(value): value for value in self.choices}.get(text, text)
        if self.kind is bool:
            if text.lower() not in _TRUE + _FALSE:
                raise ValueError(f"{source} must be true or false, got {text!r}")
            return text.lower() in _TRUE
        if self.kind in (int, float):
            try:
                number = self.kind(text)
                if math.isfinite(number):
                    return number
                raise ValueError
            except ValueError:
                word = "whole number" if self.kind is int else "number"
                raise ValueError(f"{source} must be a {word}, got {text!r}") from None
        return self.kind(text)

    def _text_of_file(self, value: object, source: str) -> str:
        """TOML knows types: numbers and truth values must not come as text, nor text as numbers."""
        wanted = self.kind if self.kind in (bool, int, float) else str
        if self.choices:
            wanted = type(self.choices[0])
        if self.declaration.parse is not None and isinstance(value, str):
            return value
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
            raise ValueError(f"{source} must be {words[wanted]}, got {value!r}")
        return _text(value)


def settings_of(kind: type) -> dict[str, Setting]:
    """Return the settings of a dataclass and of the groups in it, by name, in their order.

    `TypeError` if two fields of one name differ in type or default, so that no value suits both.
    """
    found: dict[str, Setting] = {}
    for new in _walk(kind, {}, ()):
        old = found.setdefault(new.name, new)
        if old is new:
            continue
        if (old.kind, old.many, old.default) != (new.kind, new.many, new.default):
            raise TypeError(f"--{new.name} means two things: {old} and {new}")
        found[new.name] = dataclasses.replace(old, paths=old.paths + new.paths)
    return found


def build(kind: type[T], values: Mapping[FieldPath, Any]) -> T:
    """Return settings with `values` and the defaults of all else.

    A group that is None by default becomes one as soon as one of its values is there.

    `ValueError` if required values are missing, or values contradict each other.
    """
    return _make(kind, None, values, ())


def _walk(kind: type, defaults: Mapping[str, Any], path: FieldPath) -> Iterator[Setting]:
    hints = typing.get_type_hints(kind)
    for one in dataclasses.fields(kind):
        default = defaults[one.name] if one.name in defaults else _default(one)
        declaration = one.metadata.get(KEY)
        inner, optional = without_none(hints[one.name])
        here = (*path, one.name)
        if isinstance(declaration, Declaration):
            many = typing.get_origin(inner) is tuple
            yield Setting(
                name=declaration.flag or one.name.replace("_", "-"),
                paths=(here,),
                kind=typing.get_args(inner)[0] if many else inner,
                many=many,
                optional=optional,
                default=default,
                declaration=declaration,
            )
        elif isinstance(declaration, frozenset):
            # What a group that is there must have is unset as long as the group is not.
            known = {
                each.name: None if default is None else getattr(default, each.name)
                for each in dataclasses.fields(inner)
            }
            yield from (
                found for found in _walk(inner, known, here) if found.name not in declaration
            )


def _make(kind: type[T], base: Any, values: Mapping[FieldPath, Any], path: FieldPath) -> T:
    hints = typing.get_type_hints(kind)
    given: dict[str, Any] = {}
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]  # a dataclass, by contract
        here = (*path, one.name)
        if here in values:
            given[one.name] = values[here]
        elif any(found[: len(here)] == here for found in values):
            inner, _ = without_none(hints[one.name])
            default = _default(one) if base is None else getattr(base, one.name)
            given[one.name] = _make(inner, default, values, here)
    if base is not None:
        return typing.cast(T, dataclasses.replace(base, **given))
    needed = [one for one in settings_of(kind).values() if one.default is MISSING]
    missing = [one for one in needed if one.paths[0][0] not in given]
    if missing and path:
        raise ValueError(f"{_and(needed)} need each other")
    if missing:
        raise ValueError(f"{_and(missing)} must be given")
    return kind(**given)


def _and(settings: Sequence[Setting]) -> str:
    *first, last = (f"--{one.name}" for one in settings)
    return f"{', '.join(first)} and {last}" if first else last


def _default(one: "Field[Any]") -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
