"""Grammars that are nearly right: JSON Schemas, regular expressions, Lark, several in one."""

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tools.fuzz.json_mutations import mutated_json
from tools.fuzz.mutations import mutated_bytes

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Values for keywords of JSON Schema: at the edges of what is allowed, and beyond.
_KEYWORDS: dict[str, Sequence[Any]] = {
    "type": ("object", "array", "string", "integer", ["null", "number"], [], "thing", 5),
    "minimum": (0, -1, 10**15, -(10**30), 0.1, 1e308, -1e-300, "1"),
    "maximum": (0, -1, 10**15, 10**30, 0.1, 1e308, 1e-300, None),
    "exclusiveMinimum": (0, True, -0.5, 10**18),
    "multipleOf": (1, 0, 7, 997, 0.01, 2.5, -3, 1e-9, 1e300),
    "minLength": (0, 1, 1000, 10**9, 10**18, -1, 1.5),
    "maxLength": (0, 1, 1000, 10**9, 10**18, -1, 1.5),
    "pattern": ("^a+$", "(a|b)*a(a|b){20}", "(?=x)", "[", "^\\d{3}-\\w*$", ".{0,5000}", "\\p{L}+"),
    "format": ("date-time", "email", "uri", "ipv6", "uuid", "duration", "byte", ""),
    "minItems": (0, 3, 10**6, 10**18, -1),
    "maxItems": (0, 3, 10**6, 10**18, -1),
    "items": (True, False, {}, {"$ref": "#"}, [{}], "x"),
    "prefixItems": ([{}, {"$ref": "#"}], [], [False]),
    "additionalProperties": (True, False, {"$ref": "#"}, {"type": "null"}),
    "patternProperties": ({"^a": {}, "b$": {}}, {"(": {}}, {"^.*$": {"$ref": "#"}}),
    "required": (["a", "b"], [], ["a", "a"], "a", [5]),
    "minProperties": (0, 1, 5, 10**9),
    "maxProperties": (0, 1, 5),
    "enum": ([], [1, 1.0, "1", None], [{}, []], ["x" * 3000], ["é\u200d🦆", "\0", '"\\']),
    "const": (None, 1e308, "\ud800", [[[[[]]]]], {"": {"": ""}}, "x" * 3000),
    "$ref": ("#", "#/$defs/none", "#/properties/a", "http://x.invalid/y", "", 3),
    "anyOf": ([], [{}, {"$ref": "#"}], [False, True], [{"type": "string"}] * 300),
    "oneOf": ([{"type": "string"}, {"type": "integer"}], [{}, {}], [{"$ref": "#"}]),
    "allOf": ([], [{"$ref": "#"}], [{"minimum": 1}, {"maximum": 0}], [{}] * 300),
    "not": ({}, {"type": "string"}),
    "if": ({"type": "string"},),
    "uniqueItems": (True, False),
    "propertyNames": ({"pattern": "^a"},),
    "x-guidance": ({}, {"lenient": True}, {"coerce_one_of": True}, {"whitespace_pattern": "("}, 1),
}
_REGEX_ATOMS = (
    *(
        "a",
        "b",
        "é",
        "🦆",
        ".",
        "\\d",
        "\\w",
        "\\s",
        "\\S",
        "\\n",
        "\\.",
        "\\/",
        "\\x41",
        "\\u00e9",
    ),
    *("[a-z]", "[^a]", "[\\]^-]", "\\p{L}", "\\p{Greek}", "", "^", "$", "\\b", "(?i:x)", "(?=a)"),
    *("\\1", "\\", "[", "(", ")", "*", "{", "\\u{110000}", "(?P<n>a)"),
)
_REPEATS = ("*", "+", "?", "{3}", "{2,}", "{0,50}", "{1,2000}", "{5,1}", "{0}", "{999999}", "*?")
_LARK = (
    'start: "yes" | "no"',
    'start: object\nobject: "{" pair ("," pair)* "}"\npair: KEY ":" object | KEY\nKEY: /[a-z]+/',
    "start: T\nT: /[a-z]*/ & /.*b.*/ & ~/.*c.*/",
    'start: sum\nsum: sum "+" product | product\nproduct: product "*" N | N | "(" sum ")"\n'
    "N: /[0-9]+/\n%ignore / +/",
    'start: %json {"type": "object", "properties": {"a": {"$ref": "#"}}}',
    'start: call* rest\ncall: begin "{" /[0-9]{1,3}/ "}"\nbegin[lazy]: /(.|\\n)*/ "<c>"\n'
    "rest: /(.|\\n)*/",
    'start: text "x"\ntext[stop="abc", max_tokens=5]: /.*/',
    'start: T\nT: %regex {"substring_chunks": ["one ", "two ", "three"]}',
    'start: A{2,5} b~3\nA: "x" | "y"\nb: "z"?',
    "start: <[0-20]>* <[^5-9]> <|im_end|>",
    'start: a a | b\na: b b | "x" | ""\nb: a "y"',
    "start: @other /x*/",
)
_LARK_PIECES = (
    *("|", "(", ")", "[", "]", "*", "+", "?", "{0,9}", "{999999999}", ":", "\n", '"x"', "/x/", "~"),
    *(
        "&",
        "start",
        "%ignore",
        "%import common.INT",
        "->",
        "@other",
        "<[*]>",
        "%json {}",
        "\\",
        '"',
    ),
    *("[lazy]", "[capture]", "[max_tokens=2]", "[temperature=0.5]", "T", "é", "\0", "//", "%regex"),
)
_MOST_DEPTH = 4


def grammar_text(draw: random.Random, kind: str, schemas: Sequence[Any]) -> str:
    """Return a grammar of a kind, one of `KINDS`; those of JSON Schema are made of `schemas`."""
    text = KINDS[kind](draw, schemas)
    if draw.random() < 0.05:
        return mutated_bytes(draw, text.encode()).decode(errors="replace")
    return text


def _schema(draw: random.Random, schemas: Sequence[Any]) -> str:
    schema = copy.deepcopy(draw.choice(schemas))
    if isinstance(schema, dict) and draw.random() < 0.9:
        schema.setdefault("x-guidance", _SPACING | {"lenient": draw.random() < 0.7})
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        inner = draw.choice(_objects(schema) or [{}])
        if draw.random() < 0.7:
            key = draw.choice(list(_KEYWORDS))
            inner[key] = copy.deepcopy(draw.choice(_KEYWORDS[key]))
        else:
            donor = draw.choice(_objects(draw.choice(schemas)) or [{}])
            place = draw.choice(("items", "additionalProperties", "a", *inner))
            inner[place] = copy.deepcopy(donor)
    text = json.dumps(schema)
    if draw.random() < 0.2:
        text = mutated_json(draw, text).decode()
    return f'{{"grammars": [{{"json_schema": {text}}}]}}'


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return all objects within a JSON value, itself included."""
    inner = list(value.values()) if isinstance(value, dict) else value
    found = [value] if isinstance(value, dict) else []
    if isinstance(inner, list):
        found += [one for each in inner for one in _objects(each)]
    return found


def _regex(draw: random.Random, schemas: Sequence[Any]) -> str:
    return _of_lark(f"start: /{_expression(draw, 0)}/")


def _expression(draw: random.Random, depth: int) -> str:
    if depth >= _MOST_DEPTH or draw.random() < 0.3:
        # The last nine are wrong, or mean what is not regular.
        return draw.choice(_REGEX_ATOMS if draw.random() < 0.05 else _REGEX_ATOMS[:-9])
    parts = [_expression(draw, depth + 1) for _ in range(draw.randint(1, 4))]
    joined = draw.choice(("", "", "|")).join(parts)
    return f"({joined}){draw.choice(_REPEATS)}" if draw.random() < 0.5 else joined


def _lark(draw: random.Random, schemas: Sequence[Any]) -> str:
    text = draw.choice(_LARK)
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        at, end = sorted(draw.choices(range(len(text) + 1), k=2))
        piece = draw.choice((*_LARK_PIECES, text[at:end][:40]))
        text = text[:at] + piece + text[draw.choice((at, at, min(end, at + 3))) :]
    return _of_lark(text)


def _of_lark(text: str) -> str:
    others = [{"name": "other", "lark_grammar": 'start: "o" | @other'}] if "@other" in text else []
    return json.dumps({"grammars": [{"lark_grammar": text}, *others]})


def _several(draw: random.Random, schemas: Sequence[Any]) -> str:
    """Return texts around calls, each of which is restricted by a grammar of its own."""
    names = [f"g{number}" for number in range(draw.randint(1, 5))]
    calls = " | ".join(f'"<{name}>" @{draw.choice(names)} "</{name}>"' for name in names)
    lark = f"start: TEXT (call TEXT)*\ncall: {calls}\nTEXT: /[^<]*/"
    parts = [json.loads(_lark(draw, schemas))["grammars"][0] for _ in names]
    for part in parts:
        if draw.random() < 0.7:
            part.clear()
            part["json_schema"] = draw.choice(schemas)
    named = [{"name": name, **part} for name, part in zip(names, parts, strict=True)]
    return json.dumps({"grammars": [{"lark_grammar": lark}, *named]})


KINDS: dict[str, Callable[[random.Random, Sequence[Any]], str]] = {
    "schema": _schema,
    "regex": _regex,
    "lark": _lark,
    "several": _several,
}
