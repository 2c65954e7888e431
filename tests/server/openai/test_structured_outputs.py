"""What completions must look like, in OpenAI's words and vLLM's, reaches the verifier."""

import json
from typing import Any

import aiohttp
import grpc
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.server.openai.asking import chat, complete
from tests.server.support import Running

from blockdraft_models.tokenizer.chat_template import ChatTemplate
from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError, invalid_argument
from blockdraft_server.openai.requests import chat_request, completion_request

SCHEMA = {"type": "object", "properties": {"where": {"type": "string"}}}
STRUCTURES = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": True, "end": "</f>"}],
    "triggers": ["<f"],
}
TAGS = {"tags": [{"trigger": "<f", "begin": "<f>", "json_schema": "true", "end": "</f>"}]}
QUESTION = {"messages": [{"role": "user", "content": "?"}]}


def constraint(**fields: Any) -> inference_pb2.OutputConstraint:
    """Return what is asked for of the completion of a text, and of a chat too."""
    [request] = completion_request({"prompt": "?", **fields}).requests
    [same] = chat_request({**QUESTION, **fields}).requests
    assert same.sampling.constraint == request.sampling.constraint
    return request.sampling.constraint


@pytest.mark.parametrize(
    ("fields", "ours"),
    [
        ({"response_format": None}, {}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "place",
                        "description": "where",
                        "schema": SCHEMA,
                        "strict": True,
                    },
                }
            },
            {"json_schema": json.dumps(SCHEMA)},
        ),
        ({"response_format": STRUCTURES}, {"structural_tags": TAGS}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": json.dumps(SCHEMA)}),
        ({"structured_outputs": {"json": "true"}}, {"json_schema": "true"}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"structured_outputs": {"regex": "a|b"}}, {"regex": "a|b"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": {"texts": ["a", "b"]}}),
        ({"structured_outputs": {"grammar": "start: /a/"}}, {"grammar": "start: /a/"}),
        ({"structured_outputs": {"structural_tag": STRUCTURES}}, {"structural_tags": TAGS}),
        (
            {"structured_outputs": {"structural_tag": json.dumps(STRUCTURES)}},
            {"structural_tags": TAGS},
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}},
            {"regex": "a"},
        ),
    ],
    ids=lambda value: str(value)[:70],
)
def test_forms_are_ours(fields: dict[str, Any], ours: dict[str, Any]) -> None:
    assert constraint(**fields) == inference_pb2.OutputConstraint(**ours)


BOTH = {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "text", "x": 1}}, "response_format.x"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"x": 1}}},
            "response_format.json_schema.x",
        ),
        ({"response_format": {"type": "structural_tag"}}, "response_format.structural_tags.tags"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "x": 1}}, "structured_outputs.x"),
        ({"structured_outputs": {"regex": "\\"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json_schema"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice.texts[1]"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag"),
        (BOTH, "structured_outputs"),
    ],
    ids=lambda value: str(value)[:70],
)
def test_what_is_wrong_with_a_form_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ServiceError) as caught:
        completion_request({"prompt": "?", **fields})
    assert caught.value.field == field
    assert "sampling" not in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a"}},
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_verifier_finds_wrong_is_named_as_it_was_asked_for(
    http: aiohttp.ClientSession,
    server: Running,
    verifier: FakeVerifier,
    fields: dict[str, Any],
    stream: bool,
) -> None:
    message = "sampling.constraint cannot be compiled: it is too large"
    verifier.refusal = invalid_argument("sampling.constraint", message)
    status, found = await chat(http, server, **fields, stream=stream)
    [name] = fields
    assert (status, found["error"]["param"]) == (400, name)
    assert found["error"]["message"] == f"{name} cannot be compiled: it is too large"
    verifier.refusal = ServiceError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "CONSTRAINT_TOO_COMPLEX",
        "sampling.constraint takes too much",
        field="sampling.constraint",
    )
    status, found = await chat(http, server, **fields, stream=stream)
    assert (status, found["error"]["code"]) == (400, "constraint_too_complex")
    assert (found["error"]["param"], found["error"]["message"]) == (name, f"{name} takes too much")
    # Other errors are told as they are.
    verifier.refusal = ServiceError(grpc.StatusCode.INTERNAL, "INTERNAL", "sampling.constraint")
    _, found = await chat(http, server, **fields)
    assert found["error"]["message"] == "sampling.constraint"


def template(end: str) -> ChatTemplate:
    return ChatTemplate(f"{{# <think></think> #}}{{{{ messages[0].content }}}}{end}", {})


@pytest.mark.parametrize(
    ("end", "free_text"),
    [
        ("", '(begin_2 until_1 "\\n"? "\\n"?)? '),
        ("<think>\n", 'until_1 "\\n"? "\\n"? '),
        ("<think>\n\n</think>\n\n", ""),
        ("{% if enable_thinking is defined %}<think></think>{% endif %}", ""),
    ],
    ids=["may open", "opened", "closed", "told to close"],
)
async def test_reasoning_comes_first(
    http: aiohttp.ClientSession,
    server: Running,
    verifier: FakeVerifier,
    end: str,
    free_text: str,
) -> None:
    assert server.app.http_server is not None
    server.app.http_server.template = template(end)
    options: dict[str, Any] = {"response_format": {"type": "json_object"}, "n": 2}
    if "enable_thinking" in end:
        options["chat_template_kwargs"] = {"enable_thinking": False}
    assert (await chat(http, server, **options))[0] == 200
    for asked in verifier.requests:
        start = json.loads(asked.grammar)["grammars"][0]["lark_grammar"].split("\n")[0]
        body = "(@grammar_0)" if free_text else "@grammar_0"
        assert start == f"start: {free_text}{body}"
    # Without a form, and where there is no chat, there is nothing to come before.
    assert (await chat(http, server))[0] == 200
    assert (await complete(http, server, response_format={"type": "json_object"}))[0] == 200
    free, text = verifier.requests[2:]
    assert (free.grammar, "until" in text.grammar) == ("", False)


async def test_text_that_is_no_unicode_is_a_bad_request(
    http: aiohttp.ClientSession, server: Running
) -> None:
    for fields in ({"prompt": "\ud800"}, {"structured_outputs": {"regex": "\ud800"}}):
        status, found = await complete(http, server, **fields)
        assert (status, found["error"]["param"]) == (400, "body")
