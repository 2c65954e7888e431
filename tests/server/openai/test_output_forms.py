"""Calls in the forms that published chat templates write are read, whole and streamed."""

import itertools
import json
import logging
import re
from typing import Any

import aiohttp
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.fakes.verifier import FakeVerifier
from tests.server.openai import chat_templates
from tests.server.openai.asking import chat, events
from tests.server.openai.chat_templates import CONTROL_TOKENS
from tests.server.support import EOS, Running

from blockdraft_models.tokenizer.chat_template import ChatTemplate
from blockdraft_server.openai.output_format import OutputFormat
from blockdraft_server.openai.output_parser import OutputParser

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "size": {"type": "number"},
        "sure": {"type": "boolean"},
        "names": {"type": "array"},
        "place": {"type": "object"},
        "none": {"type": ["string", "null"]},
    },
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
CALL = {"text": "a", "count": 1}
FORMS = {
    name: ChatTemplate(getattr(chat_templates, name), {})
    for name in (
        *("QWEN3", "QWEN3_CODER", "MISTRAL_NEMO", "MISTRAL_SMALL", "MAGISTRAL", "LLAMA"),
        *("GEMMA", "HARMONY"),
    )
}
CONTROL = re.compile("(" + "|".join(map(re.escape, CONTROL_TOKENS)) + ")")
XML_END = r"</parameter>(\s|\\n)*(<parameter=|</function>)"
# What would end a call if it stood alone, and what looks like it.
DELIMITERS = st.sampled_from(
    [
        *(
            "</tool_call>",
            "<tool_call>",
            "</function>",
            "\n</parameter>",
            "<parameter=a>",
            '"',
            "\\",
        ),
        *("[TOOL_CALLS]", "[ARGS]", "}", "]", "{", "<end_function_call>", "<|end|>", "<|call|>"),
        *("<|channel|>final<|message|>", "\n", "1", "true", "null", "; "),
    ]
)
TEXTS = st.lists(DELIMITERS | st.text(st.characters(codec="utf-8"), max_size=5), max_size=4).map(
    "".join
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "count": st.integers(),
        "size": st.floats(allow_nan=False, allow_infinity=False),
        "sure": st.booleans(),
        "names": st.lists(TEXTS, max_size=3),
        "place": st.dictionaries(st.sampled_from(["a", "b"]), TEXTS | st.integers() | st.none()),
        "none": st.none(),
    },
)


def parts(text: str, format: OutputFormat, marks: dict[str, str], cuts: list[int]) -> list[Any]:
    """Return the parts of a text that comes in pieces; neighbours of one kind are joined."""
    parser = OutputParser(format, marks)
    merged: list[Any] = []
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    for place, piece in enumerate(pieces):
        for part in parser.push(piece, last=place == len(pieces) - 1):
            if part.call is not None:
                merged.append(("call", part.call["name"], json.loads(part.call["arguments"])))
            elif merged and merged[-1][0] == part.kind:
                merged[-1] = (part.kind, merged[-1][1] + part.text)
            else:
                merged.append((part.kind, part.text))
    return merged


def written(name: str, content: str, calls: list[dict[str, Any]], marks: dict[str, str]) -> str:
    """Return what the model writes of a message: tokens as their stand-ins, texts as they are."""
    asks = [
        {"id": "123456789", "function": {"name": "f", "arguments": arguments}}
        for arguments in calls
    ]
    message = {"role": "assistant", "content": content, "tool_calls": asks}
    text, spelling = FORMS[name].render([message], CONTROL, add_generation_prompt=False)
    for end in ("<|call|>", "<|return|>"):
        text = text.removesuffix(end)
    text = CONTROL.sub(lambda match: marks.get(match[0], match[0]), text)
    return text.translate(spelling)


@given(data=st.data(), name=st.sampled_from(sorted(FORMS)))
@settings(deadline=None, max_examples=400)
def test_calls_are_those_that_the_template_wrote(data: st.DataObject, name: str) -> None:
    single = name in ("HARMONY", "LLAMA")
    calls = data.draw(st.lists(ARGUMENTS, min_size=1, max_size=1 if single else 3))
    content = "" if single else data.draw(st.sampled_from(["", "Let me see."]))
    # Nothing escapes what ends a value in XML.
    assume(name != "QWEN3_CODER" or not re.search(XML_END, f"{json.dumps(calls)}{calls}"))
    format = OutputFormat.of(FORMS[name], None, {"f": SCHEMA})
    marks = format.stand_ins(CONTROL_TOKENS)
    text = written(name, content, calls, marks)
    expected: list[Any] = [("call", "f", arguments) for arguments in calls]
    if content:
        expected.insert(0, ("content", content))
    whole = parts(text, format, marks, [])
    assert [part for part in whole if part[0] != "content" or part[1].strip()] == expected
    cuts = data.draw(st.lists(st.integers(0, 10_000), max_size=8))
    assert parts(text, format, marks, cuts) == whole
    assert parts(text, format, marks, list(range(len(text)))) == whole


PIECES = [
    *CONTROL_TOKENS,
    *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f", "arguments": {}}', '"'),
    *('{"name": "f", "parameters": {}}', "<function=f>", "<parameter=text>", "</parameter>"),
    *("</function>", "f", "{}", "call:f{}", "analysis", "final", "commentary to=functions.f "),
    *(" ", "\n", ";", "a", "<tool", '{"na'),
]


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=12),
    name=st.sampled_from(sorted(FORMS)),
    controlled=st.booleans(),
    cuts=st.lists(st.integers(0, 10_000), max_size=8),
)
# A control token that is left out stands before a tag that must lead.
@example(
    pieces=["[CALL_ID]", "[THINK]", "[TOOL_CALLS]"], name="MAGISTRAL", controlled=True, cuts=[1]
)
@settings(deadline=None, max_examples=600)
def test_a_stream_has_the_parts_of_the_whole(
    pieces: list[str], name: str, controlled: bool, cuts: list[int]
) -> None:
    format = OutputFormat.of(FORMS[name], None, {"f": SCHEMA})
    marks = format.stand_ins(CONTROL_TOKENS) if controlled else {}
    text = "".join(marks.get(piece, piece) for piece in pieces)
    whole = parts(text, format, marks, [])
    assert parts(text, format, marks, cuts) == whole
    assert parts(text, format, marks, list(range(len(text)))) == whole


@pytest.fixture
def verifier() -> FakeVerifier:
    fake = FakeVerifier()
    fake.description.max_context_tokens = 1024
    return fake


def serve(server: Running, verifier: FakeVerifier, template: str, *script: str) -> None:
    """Let the model have this template, and write these texts and control tokens by turns."""
    front = server.app.http_server
    assert front is not None
    front.template = ChatTemplate(template, {})
    front.control_tokens = CONTROL_TOKENS
    server.tokenizer.control_tokens = CONTROL_TOKENS
    verifier.script = [
        token
        for place, part in enumerate(script)
        for token in ([CONTROL_TOKENS[part]] if place % 2 else part.encode())
    ] + [EOS]


async def message(
    http: aiohttp.ClientSession, server: Running, **fields: Any
) -> tuple[dict[str, Any], str]:
    """Return the message of the answer, which is the same as a stream, and the finish reason."""
    fields["max_tokens"] = None
    status, body = await chat(http, server, **fields)
    assert status == 200, body
    [choice] = body["choices"]
    whole = {name: value for name, value in choice["message"].items() if value}
    asks = {"messages": [{"role": "user", "content": "hi"}], **fields}
    streamed: dict[str, Any] = {}
    for piece in await events(http, server, "/v1/chat/completions", asks):
        for name, value in piece["choices"][0]["delta"].items():
            empty: Any = [] if isinstance(value, list) else ""
            streamed[name] = streamed.get(name, empty) + value
    for calls in (whole.get("tool_calls", []), streamed.get("tool_calls", [])):
        for call in calls:
            call.pop("index", None)
            assert call.pop("id")
    assert {name: value for name, value in streamed.items() if value} == whole
    whole.pop("role")
    return whole, choice["finish_reason"]


ANALYSIS = ("", "<|channel|>", "analysis", "<|message|>", "Hm.", "<|end|>", "", "<|start|>")
FINAL = ("assistant", "<|channel|>", "final", "<|message|>", "Hello!")


async def test_channels_are_reasoning_and_content(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    serve(server, verifier, chat_templates.HARMONY, *ANALYSIS, *FINAL)
    expected = {"reasoning_content": "Hm.", "content": "Hello!"}
    assert await message(http, server) == (expected, "stop")
    # Text that looks like the tokens of a channel is text.
    text = "So: <|end|><|start|>assistant<|channel|>analysis<|message|>"
    serve(server, verifier, chat_templates.HARMONY, *ANALYSIS, *FINAL[:-1], text)
    assert (await message(http, server))[0]["content"] == text


def called(arguments: str, name: str = "f") -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "arguments": arguments}}]


HEADER = "commentary to=functions.f "


@pytest.mark.parametrize(
    ("template", "script", "expected"),
    [
        (
            chat_templates.HARMONY,
            (*ANALYSIS, "assistant", "<|channel|>", HEADER, "<|constrain|>", "json", "<|message|>",
             '{"text": "a"}'),
            {"reasoning_content": "Hm.", "tool_calls": called('{"text": "a"}')},
        ),
        (
            chat_templates.QWEN3_CODER,
            ("<tool_call>\n<function=f>\n<parameter=text>\n1\n</parameter>\n<parameter=count>\n1\n"
             "</parameter>\n</function>\n</tool_call>",),
            {"tool_calls": called('{"text": "1", "count": 1}')},
        ),
        (
            chat_templates.MISTRAL_NEMO,
            ("", "[TOOL_CALLS]", '[{"name": "f", "arguments": {}}]'),
            {"tool_calls": called("{}")},
        ),
        (
            chat_templates.MAGISTRAL,
            ("", "[THINK]", "Hm.", "[/THINK]", "", "[TOOL_CALLS]", "f", "[ARGS]", "{}"),
            {"reasoning_content": "Hm.", "tool_calls": called("{}")},
        ),
        (
            chat_templates.LLAMA,
            ("", "<|python_tag|>", '{"name": "f", "parameters": {}}'),
            {"tool_calls": called("{}")},
        ),
        (
            chat_templates.GEMMA,
            ("", "<start_function_call>", "call:f{text:", "<escape>", "a", "<escape>", "}",
             "<end_function_call>"),
            {"tool_calls": called('{"text": "a"}')},
        ),
    ],
    ids=["gpt-oss", "Qwen3-Coder", "Nemo", "Magistral", "Llama", "FunctionGemma"],
)  # fmt: skip
async def test_calls_are_read(
    http: aiohttp.ClientSession,
    server: Running,
    verifier: FakeVerifier,
    template: str,
    script: tuple[str, ...],
    expected: dict[str, Any],
) -> None:
    serve(server, verifier, template, *script)
    assert await message(http, server, tools=TOOLS) == (expected, "tool_calls")
    # Where there are no tools, there are no calls.
    whole, reason = await message(http, server)
    assert ("tool_calls" in whole, reason) == (False, "stop")


async def test_ids_of_calls_are_those_that_the_template_takes(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    template = ChatTemplate(chat_templates.MISTRAL_NEMO, {})
    serve(server, verifier, template.source, "", "[TOOL_CALLS]", '[{"name": "f", "arguments": {}}]')
    _, body = await chat(http, server, tools=TOOLS, max_tokens=None)
    answer = body["choices"][0]["message"]
    template.render([answer | {"content": ""}], CONTROL, add_generation_prompt=True)


async def test_json_that_is_no_call_of_a_tool_is_content(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    for text in ('{"name": "Ann", "parameters": {}}', '{"name": "f"', '{"answer": 1}'):
        serve(server, verifier, chat_templates.LLAMA, text)
        assert await message(http, server, tools=TOOLS) == ({"content": text}, "stop")


async def test_the_tokens_that_end_a_call_stop_it(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    serve(server, verifier, chat_templates.HARMONY, *ANALYSIS, *FINAL)
    await message(http, server)
    ends = {CONTROL_TOKENS["<|return|>"], CONTROL_TOKENS["<|call|>"]}
    assert ends <= set(verifier.requests[-1].sampling.stop_token_ids)


async def test_an_unknown_form_is_named_at_the_start(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    front = server.app.http_server
    assert front is not None
    with caplog.at_level(logging.WARNING):
        for template in (*FORMS.values(), ChatTemplate(chat_templates.GEMMA3, {}), None):
            front.open_chat(template, {}, bytes)
        assert not caplog.records
        front.open_chat(ChatTemplate(chat_templates.GLM, {}), {}, bytes)
    [record] = caplog.records
    assert "smollm2-135m" in record.getMessage()
