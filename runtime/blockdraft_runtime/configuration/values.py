"""Texts and values of a file to the values of settings, and back to texts."""

import math
import shlex
from typing import Any

from blockdraft_runtime.configuration.definition import (
    Setting,
    check_choice,
    check_range,
    choices_of,
)

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def from_text(setting: Setting, text: str, source: str) -> Any:
    """Return the value that a variable or a flag's single text means.

    A list is written as on a command line: items separated by blanks, quoted as in a shell.

    Raises:
        ValueError: Naming the source, if the text means none.
    """
    if not setting.many:
        return _one(setting, text, source)
    separator = setting.said.separator
    return from_texts(setting, text.split(separator) if separator else shlex.split(text), source)


def from_texts(setting: Setting, texts: list[str], source: str) -> Any:
    """Return the list that several texts mean.

    Raises:
        ValueError: Naming the source, if a text means no value, or two must not mean the same.
    """
    return _checked(setting, tuple(_one(setting, text, source) for text in texts), source)


def from_file(setting: Setting, value: object, source: str) -> Any:
    """Return the value that one of a TOML file means.

    Raises:
        ValueError: Naming the source, if it is of another type or out of range.
    """
    if setting.many:
        if not isinstance(value, list):
            raise ValueError(f"{source} must be a list, got {value!r}")
        items = tuple(_one_of_file(setting, item, source) for item in value)
        return _checked(setting, items, source)
    return _one_of_file(setting, value, source)


def to_texts(setting: Setting, value: Any) -> list[str]:
    """Return the texts that mean a value: one, or one for each item of a list."""
    items = value if setting.many else (value,)
    texts = [_text(item) for item in items]
    return [setting.said.separator.join(texts)] if setting.said.separator else texts


def choices(setting: Setting) -> tuple[Any, ...]:
    """Return the values that a setting must be one of; none if it may be any of its type."""
    return choices_of(setting.kind)


def _checked(setting: Setting, items: tuple[Any, ...], source: str) -> tuple[Any, ...]:
    if setting.said.distinct and len(set(items)) < len(items):
        raise ValueError(f"{source} has the same value twice")
    return items


def _one(setting: Setting, text: str, source: str) -> Any:
    # Where unset is not the default there must be a word for it.
    if setting.optional and setting.default is not None and text == "none":
        return None
    value = _parse(setting, text, source)
    check_range(setting.said, value, source)
    return value


def _parse(setting: Setting, text: str, source: str) -> Any:
    if setting.said.parse is not None:
        try:
            return setting.said.parse(text)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
    if allowed := choices(setting):
        meant = {str(value): value for value in allowed}.get(text, text)
        check_choice(allowed, meant, source)
        return meant
    if setting.kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"{source} must be true or false, got {text!r}")
        return text.lower() in _TRUE
    if setting.kind in (int, float):
        try:
            number = setting.kind(text)
            if math.isfinite(number):
                return number
            raise ValueError
        except ValueError:
            word = "whole number" if setting.kind is int else "number"
            raise ValueError(f"{source} must be a {word}, got {text!r}") from None
    return setting.kind(text)


def _one_of_file(setting: Setting, value: object, source: str) -> Any:
    """TOML knows types: numbers and truth values must not come as text, nor text as numbers."""
    wanted = setting.kind if setting.kind in (bool, int, float) else str
    if allowed := choices(setting):
        wanted = type(allowed[0])
    fits = type(value) is wanted or (wanted is float and type(value) is int)
    if not fits:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        raise ValueError(f"{source} must be {words[wanted]}, got {value!r}")
    return _one(setting, _text(value), source)


def _text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
