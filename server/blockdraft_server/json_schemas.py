"""JSON Schemas rewritten for llguidance, or refused with the place that it would enforce wrongly.

It computes with doubles and integers of 64 bits, writes some patterns of ECMA-262 otherwise, and
refuses keywords without effect. A rewritten schema allows the same values or fewer.
"""

import itertools
import re
from typing import Any

from blockdraft_runtime.status import invalid_argument

FIELD = "sampling.constraint"
# The usual layout of models. It leaves one way to write most of the JSON, so that it is drafted.
# No escapes by number: nothing needs them, and a name written so would evade its schema.
_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}
# Options of llguidance's x-guidance, with the values that leave JSON what it is.
_FORMS = {
    "whitespace_flexible": re.compile("True|False"),
    "item_separator": re.compile(r"[ \t\n\r]*,[ \t\n\r]*"),
    "key_separator": re.compile(r"[ \t\n\r]*:[ \t\n\r]*"),
}
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""Formats that are enforced; other formats are annotations."""
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = f"([0-9]{{4}}-(0[13-9]|1[0-2])|[0-9]{{4}}-02-([01][0-9]|2[0-8])|{_LEAP_YEAR}-02-29)"
# Checks that llguidance lacks: of days that a year does not have, and of seconds beyond 59.
_STRICTER = {
    "date": f"^{_DATE}",
    "date-time": f"^{_DATE}.*:[0-5][0-9](\\.[0-9]*)?([Zz]|[+-][0-9]{{2}}:[0-9]{{2}})$",
    "time": "^[0-9]{2}:[0-9]{2}:[0-5]",
}
# Keywords whose values are schemas by names, which are no keywords.
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_VALUES = frozenset(("const", "enum", "default", "examples"))
_COUNTS = frozenset(
    f"{end}{noun}" for end in ("min", "max") for noun in ("Length", "Items", "Properties")
)
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_LEAST_INT64, _MOST_INT64 = -(1 << 63), (1 << 63) - 1
_NEXT_INT64 = _LEAST_INT64 + 1024  # the next double
# Sets of so many values have 256 subsets.
_MOST_UNIQUE = 8

_OF_VALUES = frozenset(("enum", "const", "type", "title", "description"))
_TYPES: dict[str, Any] = {"": object, "string": str, "integer": int, "number": int | float}

_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f]")
_CLASS = re.compile(r"\\.|\[\^?((?:\\.|[^\]\\])*)\]|\.", re.DOTALL)
_SPACES = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"


def enforceable(schema: Any) -> Any:
    """Return the schema for llguidance, or raise a `ServiceError`."""
    if not isinstance(schema, dict):
        return {"x-guidance": {**_FORM, **_ESCAPES}} if schema is True else schema
    form = schema.get("x-guidance", _FORM)
    for name, value in form.items() if isinstance(form, dict) else [("x-guidance", form)]:
        if name not in _FORMS or not _FORMS[name].fullmatch(str(value)):
            raise _refused(f"{name}: {value!r}", "#/x-guidance")
    rest = {name: value for name, value in schema.items() if name != "x-guidance"}
    return {"x-guidance": {**form, **_ESCAPES}, **_Translation(schema).of(rest, "#")}


def _refused(feature: str, place: str) -> Exception:
    message = f"the constraint cannot be used: {feature} is not supported at {place}"
    return invalid_argument(FIELD, message)


class _Translation:
    """Rewrites the parts of one schema."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root

    def of(self, schema: Any, place: str, *, merged: bool = False) -> Any:
        """Return the rewritten schema of a place; `merged` if llguidance merges it with others."""
        if not isinstance(schema, dict):
            return schema
        self._check(schema, place, merged=merged or "allOf" in schema)
        result: dict[str, Any] = {}
        for name, value in self._plain(schema, place).items():
            if _says_nothing(name, value, schema):
                continue
            if name in _VALUES:
                result[name] = value
            elif name in _COUNTS and isinstance(value, float) and value.is_integer():
                result[name] = int(value)
            elif name == "minimum" and isinstance(value, int) and value <= _LEAST_INT64:
                result[name] = _NEXT_INT64
            elif name == "pattern" and isinstance(value, str):
                result[name] = _rust_pattern(value)
            else:
                result[name] = self._parts(name, value, f"{place}/{name}")
        if stricter := _STRICTER.get(str(schema.get("format"))):
            result["allOf"] = [*result.get("allOf", ()), {"pattern": stricter}]
        return result

    def _parts(self, name: str, value: Any, place: str) -> Any:
        if isinstance(value, list):
            parts = enumerate(value)
            return [self.of(part, f"{place}/{at}", merged=name == "allOf") for at, part in parts]
        if name in _NAMED and isinstance(value, dict):
            of_pattern = name == "patternProperties"
            return {
                _rust_pattern(key) if of_pattern else key: self.of(part, f"{place}/{_pointed(key)}")
                for key, part in value.items()
            }
        if name == "$schema" and isinstance(value, str):
            return value.replace(
                "https://json-schema.org/draft-0", "http://json-schema.org/draft-0"
            )
        return self.of(value, place)

    def _check(self, schema: dict[str, Any], place: str, *, merged: bool) -> None:
        """Refuse a schema that llguidance would enforce wrongly."""
        if re.search("draft(-0[0-3]|/next)/", str(schema.get("$schema"))):
            # It has keywords that mean nothing in others.
            raise _refused("a draft before 4 or after 2020-12", f"{place}/$schema")
        for name in ("const", "enum"):
            if not _is_kept(schema.get(name)):
                raise _refused(
                    "a control character, or an integer beyond 2^53 that no double equals,",
                    f"{place}/{name}",
                )
        for name in _BOUNDS & schema.keys():
            bound = schema[name]
            if not isinstance(bound, int | float):
                continue
            # Beyond 64 bits an integer is nothing that could be written.
            clamped = name == "maximum" and bound >= _MOST_INT64 and schema.get("type") == "integer"
            clamped |= name == "minimum" and bound <= _LEAST_INT64
            counted = name.startswith("exclusive") and abs(bound) >= 1 << 53
            if not clamped and (counted or not _is_kept(bound)):
                raise _refused(f"{bound}, beyond 2^53,", f"{place}/{name}")
        if merged and "additionalItems" in schema:
            raise _refused("additionalItems with allOf", place)
        least, required = schema.get("minProperties", 0), schema.get("required", ())
        closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
        if isinstance(least, int | float) and not closed and least > len(set(required)) + 1:
            # Names may be repeated.
            raise _refused("counting properties that have no names", f"{place}/minProperties")

    def _plain(self, schema: dict[str, Any], place: str) -> dict[str, Any]:
        """Return the schema with keywords of llguidance for `propertyNames` and `uniqueItems`."""
        names = self._referred(schema.get("propertyNames"))
        if isinstance(names, dict) and names.keys() & {"enum", "const", "pattern"}:
            if schema.keys() & _NAMED - {"$defs", "definitions"}:
                raise _refused("propertyNames beside names of properties", place)
            schema = {name: value for name, value in schema.items() if name != "propertyNames"}
            rest = schema.get("additionalProperties", True)
            schema["additionalProperties"] = False
            if "pattern" in names and names.keys() <= {"pattern", "type", "title", "description"}:
                return {**schema, "patternProperties": {names["pattern"]: rest}}
            if (values := _values(names)) is not None:
                texts = [value for value in values if isinstance(value, str)]
                return {**schema, "properties": dict.fromkeys(texts, rest)}
            raise _refused("more than a pattern or an enum", f"{place}/propertyNames")
        values = _values(self._referred(schema.get("items")))
        if schema.get("uniqueItems") is True and values is not None:
            return _unique(schema, values, place)
        return schema

    def _referred(self, schema: Any) -> Any:
        """Return the schema that a `$ref` within the root points to; another schema as it is."""
        if not isinstance(schema, dict) or not str(schema.get("$ref")).startswith("#/"):
            return schema
        part: Any = self._root
        for key in schema["$ref"][2:].split("/"):
            part = part.get(key) if isinstance(part, dict) else None
        return part


def _pointed(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _values(schema: Any) -> list[Any] | None:
    """Return the distinct values that a schema lists; None if it is more than a list of values."""
    if not isinstance(schema, dict) or schema.keys() - _OF_VALUES:
        return None
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    kind = _TYPES.get(str(schema.get("type", "")))
    if not isinstance(listed, list) or kind is None:
        return None
    typed = [value for value in listed if isinstance(value, kind)]
    return [value for at, value in enumerate(typed) if value not in typed[:at]]


def _unique(schema: dict[str, Any], values: list[Any], place: str) -> dict[str, Any]:
    """Return the schema as an enum of arrays of distinct values, which keep the values' order."""
    if len(values) > _MOST_UNIQUE:
        raise _refused(f"uniqueItems over more than {_MOST_UNIQUE} values", place)
    counts = range(schema.get("minItems", 0), min(schema.get("maxItems", 99), len(values)) + 1)
    arrays = [list(subset) for count in counts for subset in itertools.combinations(values, count)]
    replaced_keywords = ("uniqueItems", "items", "minItems", "maxItems", "type")
    return {**{k: v for k, v in schema.items() if k not in replaced_keywords}, "enum": arrays}


def _says_nothing(name: str, value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a keyword has no effect, so that it can be left out."""
    match name:
        case "format":
            return isinstance(value, str) and value not in FORMATS
        case "uniqueItems":
            return value is False
        case "propertyNames":
            return value in (True, {}, {"type": "string"})
        case "then" | "else":
            return "if" not in schema
        case "if":
            return "then" not in schema and "else" not in schema
        case "dependencies" | "dependentRequired" | "dependentSchemas":
            return bool(value == {})
        case "$schema":
            return str(value).rstrip("#").endswith("json-schema.org/schema")
    return False


def _is_kept(value: Any) -> bool:
    """Return whether doubles hold all integers of a value, and no text has control characters."""
    if isinstance(value, dict | list):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return all(map(_is_kept, parts))
    if isinstance(value, str):
        return not _CONTROL.search(value)
    return not isinstance(value, int) or (abs(value) < 1 << 1023 and int(float(value)) == value)


def _rust_pattern(pattern: str) -> str:
    """Return a pattern of ECMA-262 as one of Rust; some of its classes lose control characters.

    If a class has control characters but no quotation mark or backslash, llguidance allows these
    all the same.
    """
    return _CLASS.sub(_rust_class, pattern)


def _rust_class(match: re.Match[str]) -> str:
    text, inner = match[0], match[1]
    if inner is None:
        plain = {".": r"[^\n\r\u2028\u2029]", r"\s": f"[{_SPACES}]", r"\S": f"[^{_SPACES}]"}
        return plain.get(text, text)
    if not inner:
        return text
    negated = text.startswith("[^")
    members = re.sub(r"\\.|\[|&|~", _rust_member, inner, flags=re.DOTALL)
    whole = f"[{'^' * negated}{members}]"
    ranges = re.findall(r"([^\\])-([^\\])", inner)
    escaped = any(low <= special <= high for low, high in ranges for special in '"\\')
    narrow = r"\\\\|\\[xuc]" + ('|"' if negated else "")
    return rf"[{whole}--[\x00-\x1f]]" if escaped or re.search(narrow, inner) else whole


def _rust_member(match: re.Match[str]) -> str:
    member = {r"\s": _SPACES, r"\S": f"[^{_SPACES}]"}.get(match[0], match[0])
    return member if len(member) > 1 else f"\\{member}"
