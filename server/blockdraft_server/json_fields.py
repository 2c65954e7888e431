"""The fields of a JSON object: each is read with its type, and one that nobody reads is refused."""

import json
import math
from collections.abc import Mapping
from typing import Any

from blockdraft_runtime.status import ServiceError, invalid_argument


class Fields:
    """The fields of an object at `path` of a request; null is the same as unset."""

    def __init__(self, values: object, path: str = "") -> None:
        """Take the JSON value at `path`, which must be an object."""
        self._path = path
        if not isinstance(values, Mapping):
            raise invalid_argument(path or "body", f"{path or 'the body'} must be a JSON object")
        self._values = {name: value for name, value in values.items() if value is not None}

    def named(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def all(self) -> dict[str, Any]:
        """Return the fields that were not read yet, and leave them unread."""
        return dict(self._values)

    def take(self, name: str) -> Any:
        """Return a field of any type, None if it is unset."""
        return self._values.pop(name, None)

    def text(self, name: str) -> str | None:
        """Return a string."""
        text: str | None = self._typed(name, str, "a string")
        return text

    def flag(self, name: str, *, unset: bool = False) -> bool:
        """Return true or false."""
        value = self._typed(name, bool, "true or false")
        return unset if value is None else bool(value)

    def number(self, name: str) -> float | None:
        """Return a number."""
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise self._wrong(name, "a number")
        return None if value is None else _as_float(value)

    def integer(self, name: str, bits: int = 32) -> int | None:
        """Return an integer that fits into `bits` bits, its sign included."""
        value = self.take(name)
        if value is not None and not _is_integer(value, bits):
            raise self._wrong(name, f"an integer of {bits} bits")
        return None if value is None else int(value)

    def integers(self, name: str) -> list[int]:
        """Return a list of integers of 32 bits."""
        value = self.take(name) or []
        if not isinstance(value, list) or not _are_integers(value, 32):
            raise self._wrong(name, "a list of integers")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of strings; a string alone is a list of one."""
        value = self.take(name) or []
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a string or a list of strings")
        return value

    def inner(self, name: str) -> "Fields":
        """Return the fields of an object; an unset object has none."""
        value = self.take(name)
        return Fields({} if value is None else value, self.named(name))

    def objects(self, name: str) -> "list[Fields]":
        """Return the fields of each object of a list."""
        values = self._typed(name, list, "a list") or []
        return [Fields(value, f"{self.named(name)}[{at}]") for at, value in enumerate(values)]

    def only(self, name: str, *meanings: object) -> None:
        """Refuse a field unless it is unset or has one of these values, which ask for nothing."""
        value = self.take(name)
        if value is not None and value not in meanings:
            raise self.unsupported(name)

    def unsupported(self, name: str) -> ServiceError:
        """Return the error for a field that is not supported."""
        return invalid_argument(self.named(name), f"{self.named(name)} is not supported here")

    def finish(self) -> None:
        """Refuse the fields that were not read."""
        for name in self._values:
            raise self.unsupported(name)

    def _typed(self, name: str, kind: type, expected: str) -> Any:
        value = self.take(name)
        if value is not None and not isinstance(value, kind):
            raise self._wrong(name, expected)
        return value

    def _wrong(self, name: str, expected: str) -> ServiceError:
        return invalid_argument(self.named(name), f"{self.named(name)} must be {expected}")


def json_value(value: object, path: str) -> object:
    """Return the JSON value at `path` of a request; a text is parsed as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise invalid_argument(path, f"{path} is not valid JSON: {error}") from None


def _is_integer(value: object, bits: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # JSON does not tell 1.0 from 1.
    return value == value // 1 and -(1 << bits - 1) <= value < 1 << bits - 1


def _are_integers(values: list[Any], bits: int) -> bool:
    """Return whether all values are integers of `bits` bits, without a loop in Python."""
    kinds, bound = set(map(type, values)), 1 << bits - 1
    if not kinds <= {int, float} or (values and not -bound <= min(values) <= max(values) < bound):
        return False
    return kinds <= {int} or all(map(float.is_integer, map(float, values)))


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf  # It is refused like other numbers that are too large.
