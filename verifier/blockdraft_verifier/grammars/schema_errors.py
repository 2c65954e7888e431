"""The place in a JSON Schema of the error that keeps it from being compiled."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

# Variants of a schema are compiled for so long; the place found so far is told then.
MOST_SECONDS = 0.5

_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
# Parts that others refer to come first, so that an error in one is found where it is.
_MAPPINGS = ("$defs", "definitions", "properties", "patternProperties")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "contains", "propertyNames")


def failing_place(
    schema: Any,
    failure: Callable[[Any], str],
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Return the JSON Pointer of the innermost part of a schema with the error that it has.

    `failure` returns what is wrong with a schema, "" if nothing is. Parts are replaced by schemas
    that anything is valid under, one after another, until the error is another or gone: it is in
    the part that was replaced last.
    """
    reason, deadline = failure(schema), clock() + MOST_SECONDS
    path: list[str | int] = []
    # Recurses in C, and so less than a copy does.
    remaining = json.loads(json.dumps(schema))
    while True:
        here = _at(remaining, path)
        for key in _parts(here):
            holder = _at(here, key[:-1])
            # Beside what allows anything, an alternative would say nothing.
            nothing = {"type": "null"} if key[0] in ("anyOf", "oneOf") else {}
            part, holder[key[-1]] = holder[key[-1]], nothing
            if clock() > deadline:
                return _pointer(path)
            if failure(remaining) != reason:
                holder[key[-1]] = part
                path += key
                break
        else:
            return _pointer(path)


def _parts(schema: Any) -> Iterator[list[str | int]]:
    """Yield the paths of the schemas right below one."""
    if not isinstance(schema, dict):
        return
    for name in _MAPPINGS:
        if isinstance(schema.get(name), dict):
            for key in schema[name]:
                yield [name, key]
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            for index in range(len(schema[name])):
                yield [name, index]
    for name in _SINGLE:
        if isinstance(schema.get(name), dict):
            yield [name]


def _at(schema: Any, path: list[str | int]) -> Any:
    for key in path:
        schema = schema[key]
    return schema


def _pointer(path: list[str | int]) -> str:
    return "/".join(["#", *(str(key).replace("~", "~0").replace("/", "~1") for key in path)])
