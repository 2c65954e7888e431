"""Calls that are demanded have the model's own form, and a schema binds the answer alone."""

import json
import re
from typing import Any

import aiohttp
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.server.matching import Part, Vocabulary
from tests.server.openai import chat_templates
from tests.server.openai.asking import chat
from tests.server.support import Running

from blockdraft_models.tokenizer.chat_template import ChatTemplate
from blockdraft_server.openai.output_format import OutputFormat
from blockdraft_server.openai.output_parser import OutputParser

COUNT = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
FUNCTION = {"name": "f", "parameters": COUNT}
OTHER = {"type": "function", "function": {"name": "other"}}
TOOLS = [{"type": "function", "function": FUNCTION}, OTHER]
STRICT = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "count", "schema": COUNT}}
NAMES = (
    *("[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>", "<|constrain|>", "<|start|>"),
    "<|end|>",
)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary()


@pytest.fixture(scope="module")
def control_tokens(vocabulary: Vocabulary) -> dict[str, int]:
    """Return tokens of the vocabulary that end nothing, under the names that the forms have."""
    tokenizer = vocabulary.tokenizer
    free = sorted(tokenizer.special_token_ids - set(tokenizer.eos_token_ids))
    return dict(zip(NAMES, free, strict=False))


def tokens(text: str, control_tokens: dict[str, int]) -> list[Part]:
    pieces = re.split("(" + "|".join(map(re.escape, control_tokens)) + ")", text)
    return [control_tokens.get(piece, piece) for piece in pieces if piece]


ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CALLS = {
    "QWEN3": '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>',
    # What JSON Schema cannot describe is demanded in the form of Hermes, between the same tags.
    "QWEN3_CODER": '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>',
    "GEMMA": '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>',
    "GLM": '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>',
    "MISTRAL_NEMO": '[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}}]',
    "MISTRAL_SMALL": '[TOOL_CALLS]f[ARGS]{"n": 1}',
    "LLAMA": '{"name": "f", "parameters": {"n": 1}}',
    "HARMONY": '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}',
}


async def grammar(
    http: aiohttp.ClientSession,
    server: Running,
    verifier: FakeVerifier,
    name: str,
    control_tokens: dict[str, int],
    **fields: Any,
) -> str:
    front = server.app.http_server
    assert front is not None
    front.template = ChatTemplate(getattr(chat_templates, name), {})
    front.control_tokens = control_tokens
    server.tokenizer.control_tokens = control_tokens
    status, body = await chat(http, server, **fields)
    assert status == 200, body
    return verifier.requests[-1].grammar


@pytest.mark.parametrize("name", CALLS)
async def test_demanded_calls_are_in_the_form_of_the_model(
    http: aiohttp.ClientSession,
    server: Running,
    verifier: FakeVerifier,
    vocabulary: Vocabulary,
    control_tokens: dict[str, int],
    name: str,
) -> None:
    call = CALLS[name]
    wrong = call.replace("1", '"x"')
    own = {"type": "function", "function": {"name": "f"}}
    for fields in (
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": own},
        {"tools": STRICT},
    ):
        form = await grammar(http, server, verifier, name, control_tokens, **fields)
        assert vocabulary.error(form) == ""
        assert vocabulary.takes(form, *tokens(call, control_tokens)) is True
        assert vocabulary.takes(form, *tokens(wrong, control_tokens)) is None
        final = "<|channel|>final<|message|>Hello" if name == "HARMONY" else "Hello"
        free = "tool_choice" not in fields
        assert (vocabulary.takes(form, *tokens(final, control_tokens)) is True) is free
        if name == "HARMONY":
            assert vocabulary.takes(form, *tokens(ANALYSIS + call, control_tokens)) is True
    # And they are read.
    template = ChatTemplate(getattr(chat_templates, name), {})
    format = OutputFormat.of(template, None, {"f": COUNT})
    if name in ("GEMMA", "GLM"):
        return  # Read as demanded calls are: `test_demanded_calls_are_parsed_…`.
    marks = format.stand_ins(control_tokens)
    text = re.sub("|".join(map(re.escape, marks)) or "(?!)", lambda match: marks[match[0]], call)
    [part] = OutputParser(format, marks).push(text, last=True)
    assert part.call is not None
    assert (part.call["name"], json.loads(part.call["arguments"])) == ("f", {"n": 1})


async def test_a_schema_binds_the_final_channel_only(
    http: aiohttp.ClientSession,
    server: Running,
    verifier: FakeVerifier,
    vocabulary: Vocabulary,
    control_tokens: dict[str, int],
) -> None:
    final = "<|channel|>final<|message|>"
    for fields, answer, wrong in (
        ({"response_format": SCHEMA}, '{"n": 1}', '{"n": "x"}'),
        ({"structured_outputs": {"regex": "[0-9]+"}}, "12", "twelve"),
        ({"response_format": SCHEMA, "tools": TOOLS}, '{"n": 1}', "{}"),
    ):
        form = await grammar(http, server, verifier, "HARMONY", control_tokens, **fields)
        for before in (final, ANALYSIS + final):
            assert vocabulary.takes(form, *tokens(before + answer, control_tokens)) is True
            assert vocabulary.takes(form, *tokens(before + wrong, control_tokens)) is not True
        assert vocabulary.takes(form, *tokens(answer, control_tokens)) is None
        called = vocabulary.takes(form, *tokens(CALLS["HARMONY"], control_tokens))
        assert called is (True if "tools" in fields else None)
