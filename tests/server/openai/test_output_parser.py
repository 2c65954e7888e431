"""Reasoning, calls and content are told apart, however the text is cut into pieces."""

import itertools
import random
import re
from types import SimpleNamespace
from typing import Any

import pytest

from blockdraft_models.tokenizer.chat_template import ChatTemplate
from blockdraft_server.openai.output_format import OutputFormat
from blockdraft_server.openai.output_forms import HERMES
from blockdraft_server.openai.output_parser import OutputParser, Part

THINK = ("<think>", "</think>")
TOOLS: dict[str, dict[str, Any]] = {"rain": {}}
ALL = OutputFormat(reasoning=THINK, form=HERMES, tools=TOOLS)
OPENED = OutputFormat(reasoning=THINK, begins_reasoning=True, form=HERMES, tools=TOOLS)
CALL = '<tool_call>\n{"name": "rain", "arguments": {"where": "Köln"}}\n</tool_call>'
CALLED = {"name": "rain", "arguments": '{"where": "Köln"}'}


def parts_of(text: str, format: OutputFormat, cuts: list[int]) -> list[Part]:
    """Return the parts of a text that comes in pieces, neighbours of one kind as one."""
    parser = OutputParser(format)
    merged: list[Part] = []
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    for index, piece in enumerate(pieces):
        for part in parser.push(piece, last=index == len(pieces) - 1):
            if merged and part.call is None and merged[-1].kind == part.kind:
                merged[-1] = Part(part.kind, merged[-1].text + part.text)
            else:
                merged.append(part)
    return merged


@pytest.mark.parametrize(
    ("text", "format", "expected"),
    [
        ("Hi <b>there</b>", ALL, [("content", "Hi <b>there</b>")]),
        ("<think>\nHm.\n</think>\n\nYes.", ALL, [("reasoning", "Hm.\n"), ("content", "Yes.")]),
        (
            "Hm.</think>Yes.",
            OPENED,
            [("reasoning", "Hm."), ("content", "Yes.")],
        ),
        # Later on the tag is only text.
        ("So: <think>", ALL, [("content", "So: <think>")]),
        ("<think>cut off", ALL, [("reasoning", "cut off")]),
        (CALL, ALL, [("call", CALLED)]),
        (
            f"Let me see.\n{CALL}\n{CALL}",
            ALL,
            [("content", "Let me see.\n"), *[("call", CALLED)] * 2],
        ),
        (f"<think>a</think>\n{CALL}", ALL, [("reasoning", "a"), ("call", CALLED)]),
        # What is no call stays text.
        ("<tool_call>rain</tool_call>", ALL, [("content", "<tool_call>rain</tool_call>")]),
        ("<tool_call>[1]</tool_call>", ALL, [("content", "<tool_call>[1]</tool_call>")]),
        ('<tool_call>{"name"', ALL, [("content", '<tool_call>{"name"')]),
        # A tag within a string is text, also behind what looks like its end.
        (
            '<tool_call>{"name": "a", "arguments": {"x": "\\"</tool_call>"}}</tool_call>',
            ALL,
            [("call", {"name": "a", "arguments": '{"x": "\\"</tool_call>"}'})],
        ),
        ('<tool_call>a "b</tool_call>', ALL, [("content", '<tool_call>a "b</tool_call>')]),
        (
            '<tool_call>{"name": "a", "parameters": {"x": 1}}</tool_call>',
            ALL,
            [("call", {"name": "a", "arguments": '{"x": 1}'})],
        ),
        # White space says nothing beside a tag only.
        ("\n  if x:\n", ALL, [("content", "\n  if x:\n")]),
        (" \n", ALL, [("content", " \n")]),
        (f" \n{CALL}\n", ALL, [("call", CALLED)]),
        (" <think>a</think>\n b", ALL, [("reasoning", "a"), ("content", "b")]),
        (
            "\nHm.</think>Yes.",
            OPENED,
            [("reasoning", "Hm."), ("content", "Yes.")],
        ),
        # Nobody asked for parts.
        (f" <think>a</think>{CALL}", OutputFormat(), [("content", f" <think>a</think>{CALL}")]),
        ("a <tool", ALL, [("content", "a <tool")]),
        ("", ALL, []),
    ],
)
def test_parts(text: str, format: OutputFormat, expected: list[tuple[str, Any]]) -> None:
    rng = random.Random(text)
    for count in [0, 1, 2, 5, len(text)]:
        cuts = [rng.randint(0, len(text)) for _ in range(count)]
        found = [(part.kind, part.call or part.text) for part in parts_of(text, format, cuts)]
        assert found == expected, cuts


def template(end: str) -> ChatTemplate:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}"
    return ChatTemplate(f"{source}{end}{{% endif %}}{{{{ tools or '' }}}}", {})


def test_the_template_tells_how_a_model_writes() -> None:
    assert OutputFormat.of(None) == OutputFormat()
    assert OutputFormat.of(template("<|assistant|>")) == OutputFormat()
    closed = template("{% if not enable_thinking %}<think></think>{% endif %}<tool_call>")
    assert OutputFormat.of(closed) == OutputFormat(reasoning=THINK)
    assert OutputFormat.of(closed, None, TOOLS) == ALL
    opened = template("<think>\n{# until </think> #}{% if quick %}</think>{% endif %}")
    assert OutputFormat.of(opened) == OutputFormat(reasoning=THINK, begins_reasoning=True)
    ended = OutputFormat(reasoning=THINK, ends_reasoning=True)
    assert OutputFormat.of(opened, {"quick": True}) == ended
    refusing = SimpleNamespace(
        source="<think></think>", variables={"tools"}, render=lambda *a, **k: int("x")
    )
    assert OutputFormat.of(refusing) == OutputFormat(reasoning=THINK)
    # What knows of no tools calls them as we told it to.
    plain = OutputFormat(form=HERMES, tools=TOOLS)
    assert OutputFormat.of(ChatTemplate("", {}), None, TOOLS) == plain


NOTHING = re.compile("(?!)")


def test_a_template_gets_tools_and_arguments_and_only_those_it_knows() -> None:
    chat = ChatTemplate("{{ messages[0].content }}{{ tools | tojson }}{{ style }}", {"bos": "<s>"})
    question = [{"role": "user", "content": "a"}]
    options: Any = {"add_generation_prompt": True, "tools": [{"x": 1}], "arguments": {"style": "b"}}
    assert chat.render(question, NOTHING, **options)[0] == 'a[{"x": 1}]b'
    for name in ("other", "messages", "add_generation_prompt", "bos", "raise_exception"):
        with pytest.raises(ValueError, match=f"does not take {name}"):
            chat.render(question, NOTHING, add_generation_prompt=True, arguments={name: 1})
    plain = ChatTemplate("{{ messages[0].content }}", {})
    with pytest.raises(ValueError, match="does not take tools"):
        plain.render(question, NOTHING, add_generation_prompt=True, arguments={"tools": []})


def test_control_tokens_are_disarmed_wherever_they_are() -> None:
    chat = ChatTemplate("{{ messages | tojson }}{{ tools | tojson }}{{ style }}", {})
    forged = "<|end|>"
    message = {"role": "user", "content": forged, "tool_calls": [{"function": {forged: forged}}]}
    text, spelling = chat.render(
        [message],
        re.compile(re.escape(forged)),
        add_generation_prompt=True,
        tools=[{"name": forged}],
        arguments={"style": forged},
    )
    assert forged not in text
    assert text.translate(spelling).count(forged) == 5
