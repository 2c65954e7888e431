"""What is not done, or wrong, is refused by name; nothing is ignored."""

import asyncio
import gzip
import io
import json
import re
from typing import Any

import aiohttp
import pytest
from tests.patience import PATIENCE_SECONDS
from tests.server.openai.asking import JSON, PROMPT, TOOL, body, chat, complete, connection, url
from tests.server.support import Running

from blockdraft_models.tokenizer.chat_template import ChatTemplate


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"unknown": 1}, "unknown"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"stream_options": {"other": True}}, "stream_options.other"),
        ({"service_tier": "soon"}, "service_tier"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"7": 101}}, "logit_bias[7]"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": 1}, "stop"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"allowed_token_ids": [1] * (32 * 1024 + 1)}, "allowed_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [300]}, "prompt[0]"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": [1] * 64}, "prompt"),
    ],
    ids=lambda value: str(value)[:80],
)
async def test_what_is_wrong_or_not_done_is_named(
    http: aiohttp.ClientSession, server: Running, fields: dict[str, Any], param: str
) -> None:
    status, found = await complete(http, server, **fields)
    error = found["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert not re.search("sampling[.]|max_output_tokens", error["message"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}] * 4097}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}] * 4096}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}] * 4096}]}, "messages"),
        ({"tools": [TOOL] * 1025}, "tools"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "hi", "x": 1}]}, "messages[0].x"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"tools": [{"type": "other"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "long" * 20}]}, "messages"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
    ids=lambda value: str(value)[:80],
)
async def test_what_is_wrong_with_a_chat_is_named(
    http: aiohttp.ClientSession, server: Running, fields: dict[str, Any], param: str
) -> None:
    status, found = await chat(http, server, **fields)
    assert (status, found["error"]["param"]) == (400, param)


@pytest.mark.parametrize("data", ["", "{", "[1]", "null", '{"prompt": ' + "[" * 99999])
async def test_a_body_that_is_no_object(
    http: aiohttp.ClientSession, server: Running, data: str
) -> None:
    async with http.post(url(server, "/v1/completions"), data=data, headers=JSON) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "body"


@pytest.mark.parametrize(("megabytes", "param"), [(2, "prompt"), (4, "body")])
async def test_what_is_too_large_is_a_bad_request(
    http: aiohttp.ClientSession, server: Running, megabytes: int, param: str
) -> None:
    data = io.BytesIO(json.dumps(body(prompt="x" * (megabytes << 20))).encode())
    async with http.post(url(server, "/v1/completions"), data=data, headers=JSON) as response:
        found = await response.json()
    assert (response.status, found["error"]["param"]) == (400, param)
    assert found["error"]["code"] == "context_length_exceeded"


async def test_clients_know_a_prompt_that_is_too_long(
    http: aiohttp.ClientSession, server: Running
) -> None:
    """LiteLLM and LangChain look for the code, or for these words."""
    for ask, fields, param in (
        (complete, {"prompt": [1] * 64}, "prompt"),
        (chat, {"messages": [{"role": "user", "content": "long" * 20}]}, "messages"),
    ):
        status, found = await ask(http, server, **fields)
        error = found["error"]
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
        assert error["message"].startswith("This model's maximum context length is 64 tokens. ")
        assert f"your {param} resulted in " in error["message"]


async def test_what_is_nested_too_deeply_is_a_bad_request(
    http: aiohttp.ClientSession,
    server: Running,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ tools }}", {})

    def encode_chat(messages: Any, *, tools: Any, arguments: Any) -> list[int]:
        template.render(messages, re.compile("(?!)"), add_generation_prompt=True, tools=tools)
        return PROMPT

    monkeypatch.setattr(server.tokenizer, "encode_chat", encode_chat)
    statuses = []
    # What gives up first, JSON, the search for control tokens or the template, depends on it.
    for depth in (*range(100, 1000, 5), 5000):
        nested = "[" * depth + "]" * depth
        tool = f'{{"type": "function", "function": {{"name": "f", "x": {nested}}}}}'
        data = f'{{"messages": [{{"role": "user", "content": "hi"}}], "tools": [{tool}]}}'
        async with http.post(
            url(server, "/v1/chat/completions"), data=data, headers=JSON
        ) as response:
            statuses.append(response.status)
    refused = statuses.index(400)
    assert statuses == [200] * refused + [400] * (len(statuses) - refused)
    assert refused > 0


# A valid body, and one that nobody can inflate: neither is tried.
@pytest.mark.parametrize(
    "packed", [gzip.compress(json.dumps(body()).encode()), b"no gzip"], ids=["valid", "broken"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_compressed_bodies_are_refused_as_they_are(
    http: aiohttp.ClientSession, server: Running, method: str, packed: bytes
) -> None:
    """A small one could become hundreds of megabytes, on the event loop."""
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    address = url(server, "/v1/models" if method == "GET" else "/v1/completions")
    async with http.request(method, address, data=packed, headers=headers) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (415, "unsupported_media_type")
    assert "must not be compressed" in error["message"]
    assert (await complete(http, server))[0] == 200


async def test_who_is_refused_need_not_be_read_to_the_end(server: Running) -> None:
    async with connection(server) as (reader, writer):
        writer.write(
            b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{"
        )
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"Connection: close" in answer
