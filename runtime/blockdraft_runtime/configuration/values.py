"""The settings of a dataclass: listed by name, parsed from texts or a file, put together."""

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
    """A setting of a command. A bad value raises a ValueError that names its source."""

    name: str  # its flag without the dashes, which is also its key in a file
    paths: tuple[FieldPath, ...]  # where its value goes; several if parts of the settings share it
    kind: Any  # type of the value, without None; of one item if it is a list
    many: bool  # whether it is a list
    optional: bool  # whether it may be None
    default: Any  # value where nothing is said; MISSING if something must be
    declaration: Declaration  # what the declaration says besides

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and its alias if there is one."""
        return (
            (self.name,) if self.declaration.alias is None else (self.name, self.declaration.alias)
        )

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a `Literal` type; none for any other type."""
        return choices(self.kind)

    @property
    def metavar(self) -> str:
        """Placeholder of the value in `--help`."""
        if self.declaration.metavar is not None:
            return self.declaration.metavar
        if self.choices:
            return "{" + ",".join(map(str, self.choices)) + "}"
        if self.paths[0][-1].endswith("_seconds"):
            return "SECONDS"
        return {int: "N", float: "X"}.get(self.kind, self.name.rpartition("-")[2].upper())

    def from_text(self, text: str, source: str) -> Any:
        """Return the value that a variable, or the single text of a flag, stands for.

        The items of a list without a separator are divided by blanks and quoted as in a shell.
        """
        if not self.many:
            return self._item(text, source)
        separator = self.declaration.separator
        return self.from_texts(text.split(separator) if separator else shlex.split(text), source)

    def from_texts(self, texts: Sequence[str], source: str) -> tuple[Any, ...]:
        """Return the list whose items the texts stand for."""
        items = tuple(self._item(text, source) for text in texts)
        if self.declaration.distinct and len(set(items)) < len(items):
            raise ValueError(f"{source} has the same value twice")
        return items

    def from_file(self, value: object, source: str) -> Any:
        """Return the value that an entry of a TOML file stands for."""
        if not self.many:
            return self._item(self._text_of_file(value, source), source)
        if not isinstance(value, list):
            raise ValueError(f"{source} must be a list, got {value!r}")
        return self.from_texts([self._text_of_file(item, source) for item in value], source)

    def to_texts(self, value: Any) -> list[str]:
        """Return a value as texts: one for each item of a list without a separator, else one."""
        texts = [_text(item) for item in (value if self.many else (value,))]
        return [self.declaration.separator.join(texts)] if self.declaration.separator else texts

    def _item(self, text: str, source: str) -> Any:
        # Without this word an optional setting whose default is a value could not be unset.
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
        """Return an entry of a TOML file as text; `ValueError` if its type is not the setting's."""
        kind = self.kind if self.kind in (bool, int, float) else str
        if self.choices:
            kind = type(self.choices[0])
        if self.declaration.parse is not None and isinstance(value, str):
            return value
        if type(value) is not kind and not (kind is float and type(value) is int):
            words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
            raise ValueError(f"{source} must be {words[kind]}, got {value!r}")
        return _text(value)


def settings_of(kind: type) -> dict[str, Setting]:
    """Return the settings of a dataclass and of its groups by name, in the order of fields.

    `TypeError` if two fields of one name differ in type or default, so that no value suits both.
    """
    settings: dict[str, Setting] = {}
    for new in _walk(kind, {}, ()):
        old = settings.setdefault(new.name, new)
        if old is new:
            continue
        if (old.kind, old.many, old.default) != (new.kind, new.many, new.default):
            raise TypeError(f"--{new.name} means two things: {old} and {new}")
        settings[new.name] = dataclasses.replace(old, paths=old.paths + new.paths)
    return settings


def build(kind: type[T], values: Mapping[FieldPath, Any]) -> T:
    """Return settings with `values`, and defaults for the rest.

    A group that is None by default is made if `values` has any of its settings.

    `ValueError` if required values are missing, or values contradict each other.
    """
    return _make(kind, None, values, ())


def _walk(kind: type, defaults: Mapping[str, Any], path: FieldPath) -> Iterator[Setting]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        default = defaults[field.name] if field.name in defaults else _default(field)
        declaration = field.metadata.get(KEY)
        inner, optional = without_none(hints[field.name])
        here = (*path, field.name)
        if isinstance(declaration, Declaration):
            many = typing.get_origin(inner) is tuple
            yield Setting(
                name=declaration.flag or field.name.replace("_", "-"),
                paths=(here,),
                kind=typing.get_args(inner)[0] if many else inner,
                many=many,
                optional=optional,
                default=default,
                declaration=declaration,
            )
        elif isinstance(declaration, frozenset):
            # While a group is None, all its settings are unset, required ones too.
            members = {
                member.name: None if default is None else getattr(default, member.name)
                for member in dataclasses.fields(inner)
            }
            yield from (
                setting
                for setting in _walk(inner, members, here)
                if setting.name not in declaration
            )


def _make(kind: type[T], base: Any, values: Mapping[FieldPath, Any], path: FieldPath) -> T:
    hints = typing.get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # a dataclass, by contract
        here = (*path, field.name)
        if here in values:
            arguments[field.name] = values[here]
        elif any(key[: len(here)] == here for key in values):
            inner, _ = without_none(hints[field.name])
            default = _default(field) if base is None else getattr(base, field.name)
            arguments[field.name] = _make(inner, default, values, here)
    if base is not None:
        return typing.cast(T, dataclasses.replace(base, **arguments))
    needed = [setting for setting in settings_of(kind).values() if setting.default is MISSING]
    missing = [setting for setting in needed if setting.paths[0][0] not in arguments]
    if missing and path:
        raise ValueError(f"{_and(needed)} need each other")
    if missing:
        raise ValueError(f"{_and(missing)} must be given")
    return kind(**arguments)


def _and(settings: Sequence[Setting]) -> str:
    *first, last = (f"--{setting.name}" for setting in settings)
    return f"{', '.join(first)} and {last}" if first else last


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
