"""Which tools may or must be called, and how; how answers tell of calls that were demanded."""

import json
from typing import Any

import aiohttp
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.server.openai.asking import chat, events
from tests.server.support import EOS, Running

from blockdraft_models.tokenizer.chat_template import ChatTemplate
from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.openai.requests import chat_request

WHERE = {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]}
QUESTION = {"messages": [{"role": "user", "content": "?"}]}
NAMED = {"type": "function", "function": {"name": "w"}}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


RAIN, WIND = tool("rain", parameters=WHERE), tool("w")
STRICT = tool("snow", parameters={"properties": {}}, strict=True)


def tag(name: str, schema: Any) -> inference_pb2.StructuralTag:
    return inference_pb2.StructuralTag(
        trigger="<tool_call>",
        begin=f'<tool_call>\n{{"name": "{name}", "arguments": ',
        json_schema=json.dumps(schema),
        end="}\n</tool_call>",
    )


ANY = {"type": "object"}
NONE = {**ANY, "properties": {}, "additionalProperties": False}
FREE = [tag("rain", ANY), tag("w", ANY)]
FORM = {"response_format": {"type": "json_object"}}
ANSWER = inference_pb2.StructuralTag(json_schema=json.dumps(ANY))


def allowed(mode: str, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [*tools] or [NAMED]}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, None),
        ({"tool_choice": "none", "parallel_tool_calls": False}, None),
        ({"parallel_tool_calls": False}, {"tags": FREE, "single": True}),
        (
            {"tool_choice": "required"},
            {"tags": [tag("rain", WHERE), tag("w", NONE)], "required": True},
        ),
        (
            {"tool_choice": NAMED},
            {"tags": [tag("w", NONE)], "required": True, "single": True},
        ),
        (
            {"tools": [RAIN, STRICT]},
            {"tags": [tag("rain", ANY), tag("snow", {"type": "object", "properties": {}})]},
        ),
        ({"tools": [STRICT], "tool_choice": "none"}, None),
        ({"tool_choice": allowed("auto")}, {"tags": FREE[1:]}),
        ({"tool_choice": allowed("required")}, {"tags": [tag("w", NONE)], "required": True}),
        (FORM, {"tags": [*FREE, ANSWER], "required": True}),
        # Calls are demanded, so that there is no answer.
        (
            {**FORM, "tool_choice": NAMED},
            {"tags": [tag("w", NONE)], "required": True, "single": True},
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_calls_have_the_form_that_is_asked_for(
    fields: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    asked = chat_request({**QUESTION, "tools": [RAIN, WIND], **fields})
    [request] = asked.requests
    assert request.sampling.HasField("constraint") == (expected is not None)
    tags = inference_pb2.StructuralTags(**expected or {})
    assert request.sampling.constraint.structural_tags == tags
    # All are shown, whichever has to be called.
    shown = [json.loads(text) for text in request.prompt.conversation.tools]
    none = fields.get("tool_choice") == "none"
    assert shown == ([] if none else fields.get("tools", [RAIN, WIND]))


TOLD_AMONG_ALLOWED = "tool_choice.allowed_tools.tools[0].function.name"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": NAMED, "tools": None}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools.tools"),
        ({"tool_choice": allowed("none")}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": allowed("auto", tool("hail"))}, TOLD_AMONG_ALLOWED),
        ({"tool_choice": {**NAMED, "x": 1}}, "tool_choice.x"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tool_choice": tool("hail")}, "tool_choice.function.name"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [tool("f", strict=1)]}, "tools[0].function.strict"),
        ({"tools": [tool("f", parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": {"type": "function"}}, "tools"),
        ({"tools": [tool(f"f{i}", strict=True) for i in range(129)]}, "tools.structural_tags.tags"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_with_a_choice_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ServiceError) as caught:
        chat_request({**QUESTION, "tools": [RAIN, WIND], **fields})
    assert caught.value.field == field


def test_a_form_may_be_demanded_where_no_tool_is_to_be_called() -> None:
    form = {**FORM, "tool_choice": "none"}
    [request] = chat_request({**QUESTION, "tools": [RAIN], **form}).requests
    assert request.sampling.constraint.json_object


# Short, as the context of the verifier is.
SAID = '<tool_call>{"name": "w", "arguments": {}}</tool_call>'


# As OpenAI's, and vLLM's after it.
@pytest.mark.parametrize(
    ("choice", "reason"), [("auto", "tool_calls"), ("required", "tool_calls"), (NAMED, "stop")]
)
async def test_the_reason_of_an_end_depends_on_who_chose(
    http: aiohttp.ClientSession,
    server: Running,
    verifier: FakeVerifier,
    choice: Any,
    reason: str,
) -> None:
    assert server.app.http_server is not None
    # It knows of no tools, so that they are told of in words, and called in our form.
    server.app.http_server.template = ChatTemplate("{{ messages[0].content }}", {})
    verifier.script = [*SAID.encode(), EOS]
    options: dict[str, Any] = {"tools": [RAIN, WIND], "tool_choice": choice}
    status, found = await chat(http, server, max_tokens=None, **options)
    assert status == 200
    [whole] = found["choices"]
    [call] = whole["message"]["tool_calls"]
    assert (whole["message"]["content"], whole["finish_reason"]) == (None, reason)
    assert call["function"] == {"name": "w", "arguments": "{}"}
    pieces = await events(http, server, "/v1/chat/completions", {**QUESTION, **options})
    # OpenAI's clients tell of a call at the piece after it.
    [called, end] = [piece["choices"][0] for piece in pieces if piece["choices"]][-2:]
    assert (bool(called["delta"]["tool_calls"]), called["finish_reason"]) == (True, None)
    assert (end["delta"], end["finish_reason"]) == ({}, reason)
    # One that was cut off is no call.
    verifier.script = [*SAID[:-1].encode()]
    _, found = await chat(http, server, max_tokens=len(SAID) - 1, **options)
    [whole] = found["choices"]
    assert (whole["message"]["content"], whole["finish_reason"]) == (SAID[:-1], "length")


async def test_demanded_calls_are_parsed_whatever_the_template_writes(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    assert server.app.http_server is not None
    server.app.http_server.template = ChatTemplate("{{ messages[0].content }}{{ tools }}", {})
    verifier.script = [*SAID.encode(), EOS]
    _, found = await chat(http, server, max_tokens=None, tools=[WIND])
    assert found["choices"][0]["message"]["content"] == SAID
    _, found = await chat(http, server, max_tokens=None, tools=[WIND], tool_choice="required")
    assert len(found["choices"][0]["message"]["tool_calls"]) == 1
