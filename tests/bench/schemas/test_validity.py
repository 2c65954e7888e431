"""Whether texts are valid, and values allowed."""

import pytest
from tools.fuzz.grammar_tokens import tiny_tokenizer

from blockdraft_bench.schemas.grammar import GrammarRefusedError, compiled, grammar_text
from blockdraft_bench.schemas.validity import accepts, verdict

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "format": "date"}},
    "required": ["a"],
}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (SCHEMA, '{"a": 1}', "valid"),
        (SCHEMA, '{"a": "1"}', "invalid"),
        (SCHEMA, '{"a": 1', "invalid"),
        # Formats are for people.
        (SCHEMA, '{"a": 1, "b": "tomorrow"}', "valid"),
        (False, "1", "invalid"),
        # Of two drafts, one of which knows no prefixItems.
        ({"prefixItems": [False]}, "[1]", "invalid"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [False]},
            "[1]",
            "valid",
        ),
        ({"pattern": "\\p{L}"}, '"a"', "unknown"),
        ({"$ref": "#"}, "1", "unknown"),
        ({"$ref": "#/nowhere"}, "1", "unknown"),
    ],
)
def test_verdicts(schema: object, text: str, expected: str) -> None:
    assert verdict(schema, text) == expected


def test_values_that_a_grammar_allows() -> None:
    tokenizer = tiny_tokenizer()
    matcher = compiled(grammar_text(SCHEMA), tokenizer)
    assert accepts(matcher, tokenizer, {"a": 1, "b": "2026-01-31"})
    assert accepts(matcher, tokenizer, {"a": 1})
    assert not accepts(matcher, tokenizer, {"b": "2026-01-31"})
    # It writes them in the order of the schema.
    assert not accepts(matcher, tokenizer, {"b": "2026-01-31", "a": 1})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"uniqueItems": True}, "uniqueItems"),
        ({"$ref": "#"}, "no output is possible"),
        (5, "schema must be"),
    ],
)
def test_says_why_a_schema_is_no_grammar(schema: object, reason: str) -> None:
    with pytest.raises(GrammarRefusedError, match=reason):
        compiled(grammar_text(schema), tiny_tokenizer())


def test_compiles_a_thousand_references_in_a_row() -> None:
    definitions: dict[str, object] = {"d1000": {"type": "null"}}
    for number in range(1000):
        inner = {"$ref": f"#/$defs/d{number + 1}"}
        definitions[f"d{number}"] = {"type": "array", "prefixItems": [inner]}
    schema = {"$ref": "#/$defs/d0", "$defs": definitions}
    compiled(grammar_text(schema), tiny_tokenizer())
