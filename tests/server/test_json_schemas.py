"""JSON Schemas as users' libraries write them: what is allowed, what is refused by its place."""

import json
from typing import Any

import pytest
from tests.server.matching import Vocabulary

from blockdraft_protos.v1 import inference_pb2 as pb
from blockdraft_runtime.status import ServiceError
from blockdraft_server.constraints import check_constraint, grammar_of

pytestmark = pytest.mark.smollm2


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary()


def grammar(schema: Any) -> str:
    constraint = pb.OutputConstraint(json_schema=json.dumps(schema))
    check_constraint(constraint)
    return grammar_of(constraint, {})


def matching(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def formatted(form: str) -> dict[str, Any]:
    return {"type": "string", "format": form}


def mapping(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"type": "integer"}, **keywords}


LETTERS = {"type": "string", "enum": ["a", "b"]}
OTHERS = {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}}


@pytest.mark.parametrize(
    ("schema", "taken", "never"),
    [
        ({"const": 2**60}, [str(2**60)], [str(2**60 + 1)]),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1}, ["-7"], ["x"]),
        ({"type": "number", "maximum": 1e18}, ["1.5"], []),
        (matching('^[^"]+$'), ['"a\\\\b"'], ['"a\\"b"']),
        (matching(r"^[^\"]+$"), ['"ab"'], ['"a\\"b"']),
        (matching(r'^[^\\/:*?"<>|]+$'), ['"é b"'], ['"a\\"b"', '"a\\\\b"']),
        (matching("^[^!-~]+$"), ['"é"'], ['"a\\"b"']),
        (matching("^[^a]+$"), ['"b\\n\\"\\\\"'], ['"bab"']),
        (matching("^[^[]b]$"), ['"xb]"'], ['"["', '"xb"']),
        (matching(r"^[\s]a\s$"), ['"\\ta\u00a0"'], ['" a\u0085"']),
        (matching("^a.b$"), ['"a\\"b"', '"a.b"'], ['"a\\nb"', '"a\u2028b"']),
        (matching(r"^a[.]\.$"), ['"a.."'], ['"abc"']),
        (formatted("date"), ['"2024-02-29"', '"2000-02-29"'], ['"1900-02-29"', '"2023-02-29"']),
        (formatted("date-time"), ['"2024-02-29T23:59:59.5+01:00"'], ['"2023-01-01T23:59:60Z"']),
        (formatted("time"), ['"23:59:59Z"'], ['"23:59:60Z"']),
        (OTHERS, ['{"a": 1, "b\\n": null}'], ['{"a": 1, "\\u0061": null}']),
        (
            {"type": "object", "patternProperties": {'^[^"]+$': {}}, "additionalProperties": False},
            ['{"ab": 1}'],
            ['{"a\\"b": 1}'],
        ),
        (mapping(minProperties=2, required=["a"]), ['{"a": 1, "b": 2}'], ['{"a": 1}']),
        ({"type": "array", "uniqueItems": False}, ["[1, 1]"], []),
        (mapping(propertyNames={"type": "string"}), ['{"a": 1}'], []),
        ({"propertyNames": True}, ["{}"], []),
        ({"then": {"type": "string"}, "dependencies": {}}, ["1"], []),
        ({"type": "string", "minLength": 2.0}, ['"ab"'], ['"a"']),
        ({"$schema": "https://json-schema.org/draft-07/schema#"}, ["1"], []),
        ({"$schema": "http://json-schema.org/schema#"}, ["1"], []),
        # As pydantic writes dict[Literal["a", "b"], int], dict[Enum, int] and set[Literal[…]].
        (mapping(propertyNames=LETTERS), ['{"b": 1}', '{"a": 1, "b": 2}'], ['{"c": 1}']),
        (mapping(propertyNames={"$ref": "#/$defs/E"}, **{"$defs": {"E": LETTERS}}),
         ['{"a": 1}'], ['{"c": 1}']),
        (mapping(propertyNames={"pattern": "^[a-z]+$"}), ['{"abc": 1}'], ['{"Abc": 1}']),
        ({"type": "array", "uniqueItems": True, "items": LETTERS, "minItems": 1},
         ['["b"]', '["a", "b"]'], ["[]", '["a", "a"]']),
    ],
    ids=lambda value: json.dumps(value)[:60],
)  # fmt: skip
def test_a_schema_allows_what_it_says(
    vocabulary: Vocabulary, schema: Any, taken: list[str], never: list[str]
) -> None:
    # At the root, and below other schemas.
    for whole, prefix, suffix in (
        (schema, "", ""),
        ({"type": "array", "items": {"anyOf": [schema]}, **_definitions(schema)}, "[", "]"),
    ):
        asked = grammar(whole)
        for text in taken:
            assert vocabulary.takes(asked, *f"{prefix}{text}{suffix}") is True, text
        for text in never:
            assert vocabulary.takes(asked, *f"{prefix}{text}{suffix}") is not True, text


def _definitions(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name in ("$defs", "$schema")}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": 2**53 + 1}, "#/const"),
        ({"properties": {"a/b": {"enum": ["x", [-(2**60) - 1]]}}}, "#/properties/a~1b/enum"),
        ({"const": {"a": "nul\0"}}, "#/const"),
        ({"items": {"minimum": 2**53 + 1}}, "#/items/minimum"),
        ({"anyOf": [{}, {"exclusiveMaximum": 2**53}]}, "#/anyOf/1/exclusiveMaximum"),
        ({"type": "object", "minProperties": 2}, "#/minProperties"),
        ({"allOf": [{"items": [{}], "additionalItems": False}]}, "#/allOf/0"),
        ({"allOf": [{}], "items": [{}], "additionalItems": False}, "#"),
        ({"x-guidance": {"lenient": True}}, "#/x-guidance"),
        ({"x-guidance": {"item_separator": ";"}}, "#/x-guidance"),
        ({"x-guidance": 5}, "#/x-guidance"),
        (mapping(propertyNames={"enum": ["a"], "maxLength": 1}), "#/propertyNames"),
        (mapping(propertyNames={"enum": ["a"]}, properties={}), "#"),
        ({"uniqueItems": True, "items": {"enum": list(range(9))}}, "#"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "#/$schema"),
        ({"items": {"$schema": "https://json-schema.org/draft/next/schema"}}, "#/items/$schema"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(schema: Any, place: str) -> None:
    with pytest.raises(ServiceError) as caught:
        grammar(schema)
    assert caught.value.field == "sampling.constraint"
    assert caught.value.message.endswith(f" at {place}")


@pytest.mark.parametrize(
    "schema",
    [
        {"minItems": "x", "uniqueItems": True, "items": {"enum": [1]}},
        {"required": 5, "minProperties": 3},
    ],
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ServiceError, match="unusable"):
        grammar(schema)
