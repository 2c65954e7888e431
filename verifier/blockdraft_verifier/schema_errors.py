"""Where in a JSON Schema the error is that keeps it from being compiled."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

# So many variants of a schema are compiled at most; the place found so far is told then.
MOST_TRIALS = 256

_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
# What others refer to first: an error there is found there.
_MAPPINGS = ("$defs", "definitions", "properties", "patternProperties")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "contains", "propertyNames")


def failing_place(schema: Any, failure: Callable[[Any], str]) -> str:
    """Return the JSON Pointer of the innermost part of a schema with the error that it has.

    `failure` returns what is wrong with a schema, "" if nothing is. Parts are replaced by schemas
    that anything is valid under, one after another, until the error is another or gone: it is in
    the part that was replaced last.
    """
    said, trials = failure(schema), MOST_TRIALS
    path: list[str | int] = []
    remaining = copy.deepcopy(schema)
    while True:
        here = _at(remaining, path)
        for key in _parts(here):
            holder = _at(here, key[:-1])
            part, holder[key[-1]] = holder[key[-1]], {}
            trials -= 1
            if failure(remaining) != said:
                holder[key[-1]] = part
                path += key
                break
        else:
            key = []
        if not key or trials <= 0:
            return "/".join(["#", *(_escaped(each) for each in path)])


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


def _escaped(key: str | int) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")
