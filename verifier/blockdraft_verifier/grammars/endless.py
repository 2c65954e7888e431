"""A check that a JSON Schema has values of finite depth."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

ENDLESS = "no value ends"


def endless(schema: Any) -> str:
    """Return `ENDLESS` if each value of a schema that compiles would have to hold another.

    A reference ends if the schema it refers to does, given the references that end already. A
    schema that is not understood counts as ending.
    """
    try:
        return "" if _ends(schema, _endless_references(schema)) else ENDLESS
    except (TypeError, ValueError, AttributeError, RecursionError):
        return ""


def _endless_references(schema: Any) -> Mapping[str, Any]:
    """Return the schemas that references without an end refer to, by reference."""
    parts = list(_dicts(schema))
    if any("$id" in part for part in parts[1:]):
        # References may begin there.
        return {}
    texts = dict.fromkeys(part["$ref"] for part in parts if isinstance(part.get("$ref"), str))
    remaining = {text: part for text in texts if (part := _referred(schema, text)) is not None}
    count = len(remaining) + 1
    while len(remaining) < count:
        count = len(remaining)
        # Parts that others refer to usually come later.
        for text in reversed(list(remaining)):
            if _ends(remaining[text], remaining):
                del remaining[text]
    return remaining


def _ends(schema: Any, endless_references: Mapping[str, Any]) -> bool:
    if not isinstance(schema, dict):
        return True
    parts = list(schema.get("allOf", ()))
    if schema.get("type") == "object":
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        parts += [properties.get(name, rest) for name in schema.get("required", ())]
    elif schema.get("type") == "array":
        first, least = schema.get("prefixItems", []), int(schema.get("minItems", 0))
        parts += [*first[:least], *([schema.get("items")] if least > len(first) else [])]
    choices = [schema[name] for name in ("anyOf", "oneOf") if name in schema]
    return (
        schema.get("$ref") not in endless_references
        and all(_ends(part, endless_references) for part in parts)
        and all(any(_ends(part, endless_references) for part in choice) for choice in choices)
    )


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            yield from _dicts(part)


def _referred(schema: Any, reference: str) -> Any:
    """Return the schema that a JSON Pointer refers to, None if it refers to none."""
    first, *keys = unquote(reference).split("/")
    try:
        for key in [key.replace("~1", "/").replace("~0", "~") for key in keys]:
            schema = schema[int(key)] if isinstance(schema, list) else schema[key]
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    return schema if first == "#" else None
