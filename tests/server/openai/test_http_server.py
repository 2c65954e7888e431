"""OpenAI's API over HTTP: the same completions as by our own, and nothing ignored."""

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from tests.certificates import Authority
from tests.fakes.verifier import FakeVerifier, completion
from tests.patience import PATIENCE_SECONDS
from tests.server.support import EOS, Running, serving, text_request, until

from blockdraft_models.tokenizer.chat_template import ChatTemplate
from blockdraft_protos.v1 import verifier_pb2
from blockdraft_runtime.settings.server import LimitsSettings, TlsSettings
from blockdraft_server.keys import digest_of
from blockdraft_server.openai.http_server import HttpCaller

PROMPT = [1, 2]
TEXT = bytes(completion(PROMPT, 8)).decode()
HERE = "127.0.0.1:0"


@pytest.fixture
async def server(verifier: FakeVerifier) -> AsyncIterator[Running]:
    async with serving(verifier, openai=HERE) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(PATIENCE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield session


def url(server: Running, path: str, scheme: str = "http") -> str:
    assert server.app.http_server is not None
    return f"{scheme}://{server.app.http_server.address}{path}"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}


async def post(
    http: aiohttp.ClientSession, server: Running, path: str, fields: Any, **options: Any
) -> tuple[int, Any]:
    async with http.post(url(server, path), json=fields, **options) as response:
        return response.status, await response.json()


async def complete(http: aiohttp.ClientSession, server: Running, **fields: Any) -> tuple[int, Any]:
    return await post(http, server, "/v1/completions", body(**fields))


async def chat(http: aiohttp.ClientSession, server: Running, **fields: Any) -> tuple[int, Any]:
    messages = [{"role": "user", "content": "hi"}]
    asked = {"messages": messages, "max_tokens": 8, **fields}
    return await post(http, server, "/v1/chat/completions", asked)


async def events(
    http: aiohttp.ClientSession, server: Running, path: str, fields: Any
) -> list[dict[str, Any]]:
    async with http.post(url(server, path), json={**fields, "stream": True}) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_a_whole_completion(http: aiohttp.ClientSession, server: Running) -> None:
    status, found = await complete(http, server)
    assert (status, found["object"], found["id"][:5]) == (200, "text_completion", "cmpl-")
    assert found["choices"] == [
        {"index": 0, "text": TEXT, "finish_reason": "length", "logprobs": None}
    ]
    usage = found["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (2, 8, 10)


async def test_a_chat(http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    messages = [
        {"role": "developer", "content": "x"},
        {"role": "user", "content": parts},
        # As clients send back what they received.
        {"role": "assistant", "content": "y", "refusal": None, "annotations": []},
        {"role": "user", "content": "z"},
    ]
    status, found = await chat(http, server, messages=messages)
    prompt = [257, *b"sx", 257, *b"uhi", 257, *b"ay", 257, *b"uz"]
    assert list(verifier.requests[0].prompt_token_ids) == prompt
    text = bytes(completion(prompt, 8)).decode()
    assert (status, found["object"]) == (200, "chat.completion")
    [choice] = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)


async def test_a_stream_says_the_same(http: aiohttp.ClientSession, server: Running) -> None:
    found = await events(http, server, "/v1/completions", body())
    assert "".join(one["choices"][0]["text"] for one in found) == TEXT
    *going_on, last = [one["choices"][0]["finish_reason"] for one in found]
    assert (set(going_on), last) == ({None}, "length")
    assert len({one["id"] for one in found}) == 1
    asked = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 8,
        "stream_options": {"include_usage": True},
    }
    *pieces, usage = await events(http, server, "/v1/chat/completions", asked)
    deltas = [one["choices"][0]["delta"] for one in pieces]
    first, *later = [delta.get("role") for delta in deltas]
    assert (first, set(later)) == ("assistant", {None})
    _, whole = await chat(http, server)
    text = whole["choices"][0]["message"]["content"]
    assert "".join(delta["content"] for delta in deltas) == text
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])


async def test_several_prompts_with_several_completions(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    status, found = await complete(
        http, server, prompt=["\x01\x02", "\x03"], n=2, seed=2**63 - 1, temperature=1
    )
    assert status == 200
    texts = [bytes(completion(prompt, 8)).decode() for prompt in (PROMPT, PROMPT, [3], [3])]
    assert [choice["text"] for choice in found["choices"]] == texts
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert sorted({one.sampling.seed for one in verifier.requests}) == [-(2**63), 2**63 - 1]
    usage = found["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 32)
    pieces = await events(http, server, "/v1/completions", body(n=3))
    for index in range(3):
        mine = [one["choices"][0] for one in pieces if one["choices"][0]["index"] == index]
        assert "".join(one["text"] for one in mine) == TEXT


async def test_every_option_reaches_the_verifier(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    sampling: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "seed": 2**40,
    }
    rules: dict[str, Any] = {
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "allowed_token_ids": [100, 101],
        "min_tokens": 2,
    }
    status, _ = await complete(
        http,
        server,
        **sampling,
        **rules,
        logit_bias={"7": 2},
        bad_words="ab",
        stop_token_ids=[9],
        ignore_eos=True,
        user="somebody",
    )
    assert status == 200
    [asked] = verifier.requests
    assert asked.sampling == verifier_pb2.TokenSampling(**sampling)
    words = [verifier_pb2.TokenSequence(token_ids=b"ab")]
    expected = verifier_pb2.LogitsRules(**rules, logit_bias={7: 2.0}, bad_words=words)
    assert asked.rules == expected
    assert (list(asked.stop_token_ids), asked.max_output_tokens) == ([9], 8)


async def test_defaults_are_those_of_openai(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    fields = {"prompt": PROMPT, "top_k": -1, "n": None, "response_format": {"type": "text"}}
    status, _ = await post(http, server, "/v1/completions", fields)
    assert status == 200
    [asked] = verifier.requests
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 0, 1.0)
    assert asked.max_output_tokens == 62
    assert not asked.HasField("rules")


async def test_log_probabilities(http: aiohttp.ClientSession, server: Running) -> None:
    _, found = await complete(http, server, logprobs=2, max_tokens=4)
    told = found["choices"][0]["logprobs"]
    assert "".join(told["tokens"]) == TEXT[:4]
    assert told["text_offset"] == [0, 1, 2, 3]
    assert [len(one) for one in told["top_logprobs"]] == [2] * 4
    pieces = await events(http, server, "/v1/completions", body(logprobs=2, max_tokens=4))
    offsets = [at for one in pieces for at in one["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == [0, 1, 2, 3]
    _, found = await chat(http, server, logprobs=True, top_logprobs=1)
    content = found["choices"][0]["logprobs"]["content"]
    text = found["choices"][0]["message"]["content"]
    assert bytes(byte for one in content for byte in one["bytes"]).decode() == text
    assert {len(one["top_logprobs"]) for one in content} == {1}


@pytest.mark.parametrize("prompt", ["\x01\x02", PROMPT])
async def test_a_prompt_is_told_before_its_completion(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier, prompt: Any
) -> None:
    echoed = "\x01\x02" + TEXT
    _, found = await complete(http, server, prompt=[prompt, "\x03"], echo=True, n=2)
    texts = [choice["text"] for choice in found["choices"]]
    assert texts == [echoed] * 2 + ["\x03" + bytes(completion([3], 8)).decode()] * 2
    # A text is known without the verifier.
    assert verifier.requests[0].HasField("prompt_log_probs") == (prompt is PROMPT)
    _, found = await complete(http, server, prompt=prompt, echo=True, logprobs=1)
    told = found["choices"][0]["logprobs"]
    assert "".join(told["tokens"]) == echoed == found["choices"][0]["text"]
    assert told["token_logprobs"] == [None] + [-0.5] * 9
    assert told["top_logprobs"][:2] == [None, {"\x02": -0.5}]
    assert told["text_offset"] == list(range(10))
    pieces = await events(
        http, server, "/v1/completions", body(prompt=prompt, echo=True, logprobs=1)
    )
    streamed = [one["choices"][0] for one in pieces]
    assert "".join(one["text"] for one in streamed) == echoed
    for name, values in told.items():
        assert [value for one in streamed for value in one["logprobs"][name]] == values


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"unknown": 1}, "unknown"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"stream_options": {"other": True}}, "stream_options.other"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"7": 101}}, "logit_bias[7]"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": 1}, "stop"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"logprobs": 21}, "top_logprobs"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [300]}, "prompt[0]"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": [1] * 64}, "prompt"),
    ],
    ids=str,
)
async def test_what_is_wrong_or_not_done_is_named(
    http: aiohttp.ClientSession, server: Running, fields: dict[str, Any], param: str
) -> None:
    status, found = await complete(http, server, **fields)
    error = found["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert "sampling." not in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}] * 4097}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}] * 4096}]}, "messages"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "hi", "x": 1}]}, "messages[0].x"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
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
    async with http.post(url(server, "/v1/completions"), data=data) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "body"


async def test_models(http: aiohttp.ClientSession, server: Running) -> None:
    async with http.get(url(server, "/v1/models")) as response:
        [model] = (await response.json())["data"]
    assert (model["id"], model["max_model_len"]) == ("smollm2-135m", 64)
    async with http.get(url(server, "/v1/models/smollm2-135m")) as response:
        assert (await response.json()) == model
    async with http.get(url(server, "/v1/models/other")) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"
    status, found = await complete(http, server, model="other")
    assert (status, found["error"]["param"]) == (404, "model")


async def test_a_full_queue_is_429_with_a_time(
    http: aiohttp.ClientSession, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 1
    limits = LimitsSettings(max_waiting=0)
    async with serving(verifier, openai=HERE, limits=limits) as server:
        held = [server.stream(max_output_tokens=8) for _ in range(4)]
        for call in held:
            await anext(aiter(call))
        async with http.post(url(server, "/v1/completions"), json=body()) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
            error = (await response.json())["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        for call in held:
            call.cancel()
        verifier.go_on.set()


async def test_keys_are_those_of_the_server(
    http: aiohttp.ClientSession, verifier: FakeVerifier
) -> None:
    keys = [f"alice sha256:{digest_of('secret').hex()} max-requests=1"]
    async with serving(verifier, openai=HERE, api_keys=keys) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            options = {"headers": headers}
            status, found = await post(http, server, "/v1/completions", body(), **options)
            assert (status, found["error"]["type"]) == (401, "authentication_error")
            async with http.get(url(server, "/v1/models"), headers=headers) as response:
                assert response.status == 401
        right = {"Authorization": "Bearer secret"}
        status, found = await post(http, server, "/v1/completions", body(), headers=right)
        assert (status, found["choices"][0]["text"]) == (200, TEXT)
        # The tenant's limits hold: two at once are one too many.
        status, found = await post(http, server, "/v1/completions", body(n=2), headers=right)
        assert (status, found["error"]["code"]) == (429, "tenant_limit")
        async with http.get(url(server, "/health")) as response:
            assert response.status == 200


async def test_the_certificate_is_that_of_the_server(
    http: aiohttp.ClientSession, verifier: FakeVerifier, tmp_path: Path
) -> None:
    authority = Authority("ours")
    authority.issue("localhost").write(tmp_path)
    tls = TlsSettings(tmp_path / "cert.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    async with serving(verifier, openai="localhost:0", tls=tls) as server:
        address = url(server, "/v1/completions", "https")
        async with http.post(address, json=body(), ssl=trusting) as response:
            assert (await response.json())["choices"][0]["text"] == TEXT
        with pytest.raises(aiohttp.ClientError):
            await http.post(url(server, "/v1/completions"), json=body())


async def test_a_client_that_goes_away_frees_what_it_holds(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 1
    async with http.post(url(server, "/v1/completions"), json=body(stream=True)) as response:
        await response.content.readline()
        response.close()
    await until(lambda: verifier.cancelled == 1)
    assert server.app._service.state()["admitted"] == 0


async def test_an_error_in_a_stream_is_its_last_event(
    http: aiohttp.ClientSession, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 1
    limits = LimitsSettings(default_timeout_seconds=0.5)
    async with (
        serving(verifier, openai=HERE, limits=limits) as server,
        http.post(url(server, "/v1/completions"), json=body(stream=True)) as response,
    ):
        assert response.status == 200
        lines = (await response.text()).strip().split("\n\n")
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "deadline_exceeded")


async def test_streams_go_on_while_the_server_drains(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 1
    async with http.post(url(server, "/v1/completions"), json=body(stream=True)) as response:
        await response.content.readline()
        server.stop_requested.set()
        await until(lambda: server.app._closing is not None)
        verifier.go_on.set()
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_a_call_that_is_cancelled_at_any_moment_ends(
    server: Running, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 0

    async def read() -> None:
        async for _ in server.app._service.messages(text_request(), HttpCaller(())):
            pass

    for ticks in range(20):
        call = asyncio.ensure_future(read())
        for _ in range(ticks):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call], timeout=1.0)
        assert call.cancelled(), ticks


TOOL = {"type": "function", "function": {"name": "rain", "parameters": {"type": "object"}}}


async def test_tools_and_arguments_reach_the_template(
    http: aiohttp.ClientSession, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def encode_chat(messages: Any, **options: Any) -> list[int]:
        given.update(options, messages=messages)
        return PROMPT

    monkeypatch.setattr(server.app._service._tokenizer, "encode_chat", encode_chat)
    function = {"name": "rain", "arguments": '{"where": "here"}'}
    messages = [
        {"role": "user", "content": "Does it rain?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "yes", "tool_call_id": "c1"},
    ]
    options = {"chat_template_kwargs": {"enable_thinking": False}, "tool_choice": "auto"}
    status, _ = await chat(http, server, messages=messages, tools=[TOOL], **options)
    assert status == 200
    assert (given["tools"], given["arguments"]) == ([TOOL], {"enable_thinking": False})
    question, call, answer = given["messages"]
    assert question == messages[0]
    assert call["tool_calls"][0]["function"] == {"name": "rain", "arguments": {"where": "here"}}
    assert (call["content"], call["reasoning_content"]) == ("", "Hm.")
    assert answer == messages[2]
    status, _ = await chat(http, server, tools=[TOOL], tool_choice="none")
    assert (status, given["tools"]) == (200, [])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "other"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "strict": True}}]},
            "tools[0].function.strict",
        ),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "["}}]}]},
            "messages[0].tool_calls[0].arguments",
        ),
    ],
    ids=str,
)
async def test_what_is_wrong_with_tools_is_named(
    http: aiohttp.ClientSession, server: Running, fields: dict[str, Any], param: str
) -> None:
    status, found = await chat(http, server, **fields)
    assert (status, found["error"]["param"]) == (400, param)


async def test_thoughts_and_calls_are_told_apart(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    assert server.app.http_server is not None
    server.app.http_server.template = ChatTemplate(
        "{# <think></think><tool_call> #}{{ tools }}", {}
    )
    said = '<think>a</think>\nb<tool_call>{"name":"f"}</tool_call>'
    verifier.script = [*said.encode(), EOS]
    _, found = await chat(http, server, max_tokens=None)
    # Nobody asked for calls.
    assert found["choices"][0]["message"]["content"] == said[said.index("b<") :]
    _, found = await chat(http, server, max_tokens=None, tools=[TOOL])
    [choice] = found["choices"]
    message = choice["message"]
    [call] = message.pop("tool_calls")
    assert message == {
        "role": "assistant",
        "content": "b",
        "reasoning_content": "a",
        "refusal": None,
    }
    assert choice["finish_reason"] == "tool_calls"
    assert (call["type"], call["function"]) == (
        "function",
        {"name": "f", "arguments": "{}"},
    )
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    pieces = await events(http, server, "/v1/chat/completions", asked)
    deltas = [one["choices"][0]["delta"] for one in pieces]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "a"
    assert "".join(delta.get("content", "") for delta in deltas) == "b"
    [[streamed]] = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert (streamed["index"], streamed["function"]) == (0, call["function"])
    assert pieces[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("megabytes", "param"), [(2, "prompt"), (4, "body")])
async def test_what_is_too_large_is_a_bad_request(
    http: aiohttp.ClientSession, server: Running, megabytes: int, param: str
) -> None:
    data = io.BytesIO(json.dumps(body(prompt="x" * (megabytes << 20))).encode())
    async with http.post(url(server, "/v1/completions"), data=data) as response:
        found = await response.json()
    assert (response.status, found["error"]["param"]) == (400, param)


async def test_openais_client_reads_calls_of_tools(server: Running, verifier: FakeVerifier) -> None:
    assert server.app.http_server is not None
    server.app.http_server.template = ChatTemplate("{# <tool_call> #}{{ tools }}", {})
    said = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    verifier.script = [*said.encode(), EOS]
    tool: Any = TOOL
    async with openai.AsyncOpenAI(base_url=url(server, "/v1"), api_key="none") as client:
        ask = partial(
            client.chat.completions.create,
            model="smollm2-135m",
            messages=[{"role": "user", "content": "?"}],
            tools=[tool],
        )
        answer: Any = await ask()
        [call] = answer.choices[0].message.tool_calls
        stream: Any = await ask(stream=True)
        deltas = [one.delta async for piece in stream for one in piece.choices]
    assert (call.function.name, json.loads(call.function.arguments)) == ("f", {"a": 1})
    [streamed] = [each for delta in deltas for each in delta.tool_calls or ()]
    assert streamed.function.arguments == call.function.arguments
