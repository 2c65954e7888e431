"""What constraints are refused, and what texts the grammars of the others accept."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.server.matching import Part, Vocabulary

from blockdraft_protos.v1 import inference_pb2 as pb
from blockdraft_runtime.status import ServiceError
from blockdraft_server.constraints import (
    MAX_CHOICES,
    MAX_CONSTRAINT_BYTES,
    MAX_TAGS,
    check_constraint,
    grammar_of,
)
from blockdraft_server.json_fields import Fields
from blockdraft_server.openai.output_format import OutputFormat
from blockdraft_server.openai.output_forms import HERMES
from blockdraft_server.openai.output_parser import OutputParser
from blockdraft_server.openai.tools import tools_of

pytestmark = pytest.mark.smollm2

COUNT = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
THOUGHT = pb.FreeText(begin="<think>", end="</think>")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary()


def grammar(**fields: Any) -> str:
    constraint = pb.OutputConstraint(**fields)
    check_constraint(constraint)
    return grammar_of(constraint, {})


def tag(name: str, trigger: str = "<call>") -> pb.StructuralTag:
    begin = f"<call>{name} "
    return pb.StructuralTag(trigger=trigger, begin=begin, json_schema=COUNT, end="</call>")


def tags(**options: bool) -> pb.StructuralTags:
    return pb.StructuralTags(tags=[tag("a"), tag("b")], **options)


TAGS = "structural_tags.tags"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, ""),
        ({"free_text": THOUGHT}, ""),
        ({"json_schema": " " * MAX_CONSTRAINT_BYTES}, ""),
        ({"json_schema": ""}, ".json_schema"),
        ({"json_schema": "{"}, ".json_schema"),
        ({"json_schema": "[]"}, ".json_schema"),
        ({"json_schema": '{"minimum": NaN}'}, ".json_schema"),
        ({"json_schema": '{"minimum": -Infinity}'}, ".json_schema"),
        ({"json_schema": '{"a":' * 40_000}, ".json_schema"),
        ({"json_object": False}, ".json_object"),
        ({"regex": ""}, ".regex"),
        ({"regex": "a\\\\\\"}, ".regex"),
        ({"grammar": ""}, ".grammar"),
        ({"choice": pb.Choices()}, ".choice.texts"),
        ({"choice": pb.Choices(texts=["a", ""])}, ".choice.texts[1]"),
        ({"choice": pb.Choices(texts=["a"] * (MAX_CHOICES + 1))}, ".choice.texts"),
        ({"structural_tags": pb.StructuralTags()}, f".{TAGS}"),
        ({"structural_tags": pb.StructuralTags(tags=[tag("a")] * (MAX_TAGS + 1))}, f".{TAGS}"),
        ({"structural_tags": pb.StructuralTags(tags=[tag("a"), tag("b", "<")])}, f".{TAGS}"),
        ({"structural_tags": pb.StructuralTags(tags=[tag("a", "a")])}, f".{TAGS}[0].begin"),
        (
            {"structural_tags": pb.StructuralTags(tags=[pb.StructuralTag(json_schema="{}")])},
            f".{TAGS}[0].begin",
        ),
        (
            {"structural_tags": pb.StructuralTags(tags=[pb.StructuralTag()], required=True)},
            f".{TAGS}[0].begin",
        ),
        ({"regex": "a", "free_text": pb.FreeText(begin="a")}, ".free_text.end"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ServiceError) as caught:
        grammar(**fields)
    assert caught.value.field == f"sampling.constraint{field}"


@pytest.mark.parametrize("schema", ['{"minimum": 1e999}', '{"const": "\\ud800"}'])
def test_json_that_can_be_read_but_not_written_is_refused(schema: str) -> None:
    with pytest.raises(ServiceError, match="holds unusable JSON"):
        grammar(json_schema=schema)


def test_schemas_as_deep_as_can_be_are_refused_or_written() -> None:
    outcomes = set()
    for depth in range(100, 1100, 10):
        try:
            grammar(json_schema='{"not":' * depth + "{}" + "}" * depth)
            outcomes.add("written")
        except ServiceError as error:
            outcomes.add(error.field or "")
    assert {"written", "sampling.constraint.json_schema"} <= outcomes


def test_json_has_one_form_unless_the_schema_says_otherwise(vocabulary: Vocabulary) -> None:
    asked = grammar(json_schema=COUNT)
    assert vocabulary.takes(asked, '{"n": 12, "m": [1, {}]}') is True
    assert vocabulary.takes(asked, '{"n": 12') is False
    for other in ('{"n":12}', '{ "n": 12}', ' {"n": 12}', '{"n": 12,"m": 1}', '{"m": 1, "n": 2}'):
        assert vocabulary.takes(asked, other) is None
    assert vocabulary.forced(asked) == '{"n": '
    form = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}
    asked = grammar(json_schema=json.dumps({**json.loads(COUNT), "x-guidance": form}))
    for taken in ('{"n":12}', '{ "n" :\n12 }'):
        assert vocabulary.takes(asked, taken) is True


def test_schemas_that_are_no_objects(vocabulary: Vocabulary) -> None:
    assert vocabulary.takes(grammar(json_schema="true"), "[1, true]") is True
    assert "nsatisfiable" in vocabulary.error(grammar(json_schema="false"))


def test_formats_that_are_not_enforced_are_left_out_wherever_a_schema_is(
    vocabulary: Vocabulary,
) -> None:
    text = {"type": "string", "format": "password"}
    for name in ("enum", "const", "properties", "format", "other"):
        schema = {"type": "object", "properties": {name: text}, "required": [name]}
        taken = json.dumps({name: "secret"})
        for whole in (schema, {"allOf": [schema]}, {"$defs": {name: schema}, **schema}):
            assert vocabulary.takes(grammar(json_schema=json.dumps(whole)), taken) is True
    asked = grammar(json_schema=json.dumps({"enum": [text], "const": text}))
    assert vocabulary.takes(asked, json.dumps(text)) is True


def test_a_json_object(vocabulary: Vocabulary) -> None:
    asked = grammar(json_object=True)
    assert vocabulary.takes(asked, '{"a": [1, 2.5], "b": {"c": null}}') is True
    assert vocabulary.takes(asked, "[]") is None


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        ("a/b", "a/b", "a\\/b"),
        (r"a\/b", "a/b", "a\\/b"),
        (r"\\/", "\\/", "/"),
        ("[/*]+//", "*/*//", "x//"),
        ("[0-9]{2}(,[0-9]{2})*", "12,34", "12,3x"),
        ("(?i)yes|no", "YES", "maybe"),
        ("line\nfeed", "line\nfeed", "linefeed"),
        ("(?x) a # comment\n b", "ab", "a b"),
        (r"\p{Greek}+é", "αβé", "abé"),
        ('"\\"', '""', '"\\"'),
        ("(?s).{3}", "a\nb", "abcd"),
        ("a/i", "a/i", "A"),
    ],
)
def test_a_regex_is_that_of_rust(
    vocabulary: Vocabulary, pattern: str, taken: str, refused: str
) -> None:
    for free_text in (None, THOUGHT):
        asked = grammar(regex=pattern, free_text=free_text)
        assert vocabulary.takes(asked, taken) is True
        assert vocabulary.takes(asked, refused) is None


def test_a_lark_grammar(vocabulary: Vocabulary) -> None:
    text = 'start: sum\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/\n%ignore / +/'
    for free_text in (None, THOUGHT):
        asked = grammar(grammar=text, free_text=free_text)
        assert vocabulary.takes(asked, "1 + 23") is True
        assert vocabulary.takes(asked, "1 +") is False
        assert vocabulary.takes(asked, "1 2") is None
    assert "unknown name" in vocabulary.error(grammar(grammar="start: other"))


# For some bytes of other characters the target has no tokens.
CHARACTERS = st.characters(codec="utf-8", min_codepoint=0x20, max_codepoint=0x1FFFF)
TEXTS = st.text(CHARACTERS, min_size=1, max_size=6)


@given(texts=st.lists(TEXTS, min_size=1, max_size=5), other=TEXTS)
@example(texts=["a", "ab", "abc"], other="abcd")
@example(texts=['"', "\\", "\x00\x7f\u2028", "/*", "😀"], other="//")
@settings(deadline=None, max_examples=50)
def test_a_choice_is_one_of_the_texts(vocabulary: Vocabulary, texts: list[str], other: str) -> None:
    asked = grammar(choice=pb.Choices(texts=texts))
    for text in [*texts, other]:
        assert (vocabulary.takes(asked, *text) is True) == (text in texts)


# What a completion with tags is put together of; a call is right in one form only.
CALLS = ['<call>a {"n": 1}</call>', '<call>b {"n": -20}</call>']
PIECES = ["<call>", "<call", "</call>", "<think>", "</think>", "think>", "x", "\n", " ", *CALLS]
ANY_CALL = re.compile("|".join(map(re.escape, CALLS)))


def is_tagged(text: str, *, required: bool, single: bool) -> bool:
    """Say in plain code whether a text has the form of tags that trigger and contain calls."""
    if required:
        calls = text.split("\n")
        right = all(ANY_CALL.fullmatch(call) for call in calls)
        return right and (len(calls) == 1 or not single)
    before, trigger, _ = text.partition("<call>")
    if not trigger:
        return True
    rest = text[len(before) :]
    if (call := ANY_CALL.match(rest)) is None:
        return False
    rest = rest[call.end() :]
    return not rest if single else is_tagged(rest, required=False, single=False)


def is_after_thought(text: str, begin: str, body: Any) -> bool:
    if not text.startswith(begin):
        return bool(body(text))
    _, end, rest = text.removeprefix(begin).partition("</think>")
    return bool(end) and any(
        body(rest.removeprefix("\n" * breaks))
        for breaks in range(3)
        if rest.startswith("\n" * breaks)
    )


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=8),
    required=st.booleans(),
    single=st.booleans(),
    begin=st.sampled_from([None, "", "<think>"]),
)
@example(pieces=["<think>", "<call>", "</think>", "\n", CALLS[0]], required=True, single=True,
         begin="<think>")  # fmt: skip
@example(pieces=["<think>", "x"], required=False, single=False, begin="<think>")
@example(pieces=[CALLS[0], "\n", CALLS[1], "x", CALLS[0]], required=False, single=False, begin=None)
@settings(deadline=None, max_examples=120)
def test_tags_and_reasoning_are_as_described(
    vocabulary: Vocabulary, pieces: list[str], required: bool, single: bool, begin: str | None
) -> None:
    free_text = None if begin is None else pb.FreeText(begin=begin, end="</think>")
    asked = grammar(structural_tags=tags(required=required, single=single), free_text=free_text)
    text = "".join(pieces)

    def body(rest: str) -> bool:
        return is_tagged(rest, required=required, single=single)

    expected = body(text) if begin is None else is_after_thought(text, begin, body)
    # Whatever the tokens.
    assert (vocabulary.takes(asked, text) is True) == expected
    assert (vocabulary.takes(asked, *pieces) is True) == expected
    assert (vocabulary.takes(asked, *text) is True) == expected


@given(pieces=st.lists(st.sampled_from([*PIECES, '{"n": 3}']), max_size=6))
@example(pieces=["<think>", '{"n": 3}', "</think>", "\n", "\n", '{"n": 3}'])
@settings(deadline=None, max_examples=50)
def test_a_schema_after_a_thought(vocabulary: Vocabulary, pieces: list[str]) -> None:
    asked = grammar(json_schema=COUNT, free_text=THOUGHT)
    expected = is_after_thought("".join(pieces), "<think>", '{"n": 3}'.__eq__)
    assert (vocabulary.takes(asked, *pieces) is True) == expected


def test_several_triggers(vocabulary: Vocabulary) -> None:
    other = pb.StructuralTag(begin="[[", json_schema="true", end="]]")
    asked = grammar(structural_tags=pb.StructuralTags(tags=[tag("a"), other, tag("b")]))
    assert vocabulary.takes(asked, f"x[[3]]{CALLS[1]}[[[1]]]<cal[") is True
    for wrong in ("[[x", "<call>[["):
        assert vocabulary.takes(asked, wrong) is None


def test_where_something_begins_nothing_else_can_be(vocabulary: Vocabulary) -> None:
    asked = grammar(structural_tags=pb.StructuralTags(tags=[tag("a")]))
    assert vocabulary.forced(asked, "Well: <call>") == 'a {"n": '
    asked = grammar(structural_tags=tags(required=True, single=True))
    assert vocabulary.forced(asked) == "<call>"
    assert vocabulary.takes(asked, *CALLS) is None


def test_control_tokens_are_tokens_and_no_text(vocabulary: Vocabulary) -> None:
    control = vocabulary.tokenizer.control_tokens
    begin, end = control["<repo_name>"], control["<file_sep>"]

    def takes(constraint: pb.OutputConstraint, *parts: Part) -> bool | None:
        check_constraint(constraint)
        return vocabulary.takes(grammar_of(constraint, control), *parts)

    thought = pb.OutputConstraint(
        json_schema=COUNT, free_text=pb.FreeText(begin="<repo_name>", end="<file_sep>")
    )
    for body in ((), (begin, "Hm. <file_sep> {", end, "\n\n")):
        assert takes(thought, *body, '{"n": 1}') is True
    for wrong in ([end], ["<repo_name>"], [begin, begin], [begin, "x", end, "\n\n\n"]):
        assert takes(thought, *wrong) is None
    # In the middle of what is said they are tokens too.
    thought.free_text.MergeFrom(pb.FreeText(begin="a<repo_name>b", end="c<file_sep>d"))
    assert takes(thought, "a", begin, "b x\nc", end, "d", '{"n": 1}') is True
    for wrong in (["ab"], ["a", begin, "b x", end], ["a", begin, "b c", end, "{"]):
        assert takes(thought, *wrong) is None
    part = pb.StructuralTag(begin="<repo_name>x", json_schema="true", end="<file_sep>")
    for trigger in ("<repo_name>", ""):
        part.trigger = trigger
        tagged = pb.OutputConstraint(structural_tags=pb.StructuralTags(tags=[part]))
        assert takes(tagged, "a <repo_name>", begin, "x[1]", end, "b", begin, "x2", end) is True
        for wrong in ([end], [begin, "y"], [begin, "x3<file_sep>"]):
            assert takes(tagged, *wrong) is None


def test_calls_of_tools_are_those_that_are_parsed(vocabulary: Vocabulary) -> None:
    function = {"name": 'a "quoted" tool', "parameters": json.loads(COUNT), "strict": True}
    tools = tools_of(Fields({"tools": [{"type": "function", "function": function}]}))
    assert tools.tags is not None
    asked = grammar(structural_tags=tools.tags)
    said = 'Hm.\n<tool_call>\n{"name": "a \\"quoted\\" tool", "arguments": {"n": -3}}\n</tool_call>'
    assert vocabulary.takes(asked, said) is True
    assert vocabulary.takes(asked, said.replace("-3", '"x"')) is None
    parser = OutputParser(OutputFormat(form=HERMES, tools=tools.schemas))
    content, call = parser.push(said, last=True)
    assert (content.text, call.call) == (
        "Hm.\n",
        {"name": function["name"], "arguments": '{"n": -3}'},
    )


@pytest.mark.parametrize("single", [False, True])
def test_an_answer_of_a_form_stands_in_place_of_calls(vocabulary: Vocabulary, single: bool) -> None:
    several = tags(required=True, single=single)
    several.tags.add(json_schema=COUNT)
    for free_text in (None, THOUGHT):
        asked = grammar(structural_tags=several, free_text=free_text)
        for taken in ('{"n": 1}', *CALLS):
            assert vocabulary.takes(asked, taken) is True
        assert (vocabulary.takes(asked, "\n".join(CALLS)) is True) is not single
        for never in ('{"n": 1}\n{"n": 2}', f'{CALLS[0]}\n{{"n": 1}}', "x"):
            assert vocabulary.takes(asked, never) is not True


def test_as_many_tags_and_choices_as_may_be(vocabulary: Vocabulary) -> None:
    many = pb.StructuralTags(tags=[tag(f"t{number}") for number in range(MAX_TAGS)])
    assert vocabulary.takes(grammar(structural_tags=many), '<call>t100 {"n": 1}</call>') is True
    texts = [f"choice {number}" for number in range(MAX_CHOICES)]
    assert vocabulary.takes(grammar(choice=pb.Choices(texts=texts)), texts[-1]) is True
