"""Results as JSON: frozen dataclasses, written and read by msgspec.

A dataclass is its JSON object: each field is a key of the same name, and reading checks every value
against the field's annotation. One thing is written more simply than it is typed: an `Estimate`
NAME stands as `NAME`, `NAME_ci95` and `NAME_answers` side by side, and a tuple of estimates as
three lists, so that a number is a number to whoever reads the file.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from blockdraft_bench.common.errors import BenchUsageError

Record = TypeVar("Record")

_PARTS = ("value", "ci95", "answers")
# What says how many answers a number rests on, in results written before each number did.
_COUNTS = ("samples", "groups")


def digest(*parts: object) -> str:
    """Return 16 hexadecimal digits that stand for dataclasses, numbers, texts, and what holds them.

    The order of sets and of mappings does not matter.
    """
    text = msgspec.json.encode(parts, order="deterministic")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def to_json(record: object) -> str:
    """Return the JSON of a dataclass, as people read it.

    Raises:
        ValueError: If a number is not finite; an undefined one is None.
    """
    fields = _spread(msgspec.to_builtins(record))
    return json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(kind: type[Record], content: bytes | str) -> Record:
    """Return the dataclass that `to_json` wrote; keys that it does not have are left alone.

    A class whose JSON had another form in earlier versions has a static method `upgraded`, which
    is given such an object and returns it in today's form.

    Raises:
        ValueError: If it is something else; the message names the place.
    """
    fields = _gathered(msgspec.json.decode(content))
    upgraded = getattr(kind, "upgraded", None)
    if upgraded is not None and isinstance(fields, dict):
        fields = upgraded(fields)
    return msgspec.convert(fields, kind)


def read_record(kind: type[Record], path: Path, what: str) -> Record:
    """Read the JSON file of a dataclass.

    Args:
        kind: The dataclass.
        path: The file.
        what: What it should be, such as "acceptance.json".

    Raises:
        BenchUsageError: If it cannot be read or is something else.
    """
    try:
        return from_json(kind, path.read_bytes())
    except OSError as error:
        raise BenchUsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BenchUsageError(f"{path} is no {what}: {error}") from error


def _spread(value: Any) -> Any:
    """Return a JSON value with the parts of every estimate side by side."""
    if isinstance(value, list | tuple):
        return [_spread(item) for item in value]
    if not isinstance(value, dict):
        return value
    spread: dict[str, Any] = {}
    for name, item in value.items():
        if _is_estimate(item):
            spread |= {_key(name, part): item[part] for part in _PARTS}
        elif isinstance(item, list | tuple) and item and all(map(_is_estimate, item)):
            spread |= {_key(name, part): [each[part] for each in item] for part in _PARTS}
        else:
            spread[name] = _spread(item)
    return spread


def _gathered(value: Any) -> Any:
    """Return a JSON value with the parts of every estimate in an object of its own."""
    if isinstance(value, list):
        return [_gathered(item) for item in value]
    if not isinstance(value, dict):
        return value
    gathered = {name: _gathered(item) for name, item in value.items()}
    for name in [name for name in value if _key(name, "ci95") in value]:
        parts = [value[name], value[_key(name, "ci95")], _answers(value, name)]
        if isinstance(value[name], list):
            if not isinstance(parts[2], list):
                parts[2] = [parts[2]] * len(value[name])
            rows = zip(*parts, strict=True)
            gathered[name] = [dict(zip(_PARTS, row, strict=True)) for row in rows]
        else:
            gathered[name] = dict(zip(_PARTS, parts, strict=True))
    return gathered


def _answers(row: Mapping[str, Any], name: str) -> Any:
    for key in (_key(name, "answers"), *_COUNTS):
        if key in row:
            return row[key]
    return None


def _key(name: str, part: str) -> str:
    return name if part == "value" else f"{name}_{part}"


def _is_estimate(value: object) -> bool:
    return isinstance(value, dict) and tuple(value) == _PARTS
