"""OpenAI's API over HTTP: the same completions as by our own."""

import json
from functools import partial
from typing import Any

import aiohttp
import openai
import pytest
from tests.fakes.verifier import FakeVerifier, completion
from tests.server.openai.asking import PROMPT, TEXT, TOOL, body, chat, complete, events, post, url
from tests.server.support import EOS, Running

from blockdraft_models.tokenizer.chat_template import ChatTemplate
from blockdraft_protos.v1 import inference_pb2 as pb
from blockdraft_server.openai.responses import TextAnswer


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
        {"role": "user", "content": "z", "name": "ann"},
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
    assert {one["usage"] for one in pieces} == {None}
    assert all("usage" not in one for one in found)


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
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "seed": 2**40,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "allowed_token_ids": [100, 101],
        "min_tokens": 2,
    }
    status, _ = await complete(
        http,
        server,
        **options,
        logit_bias={"7": 2},
        bad_words="ab",
        stop_token_ids=[9],
        ignore_eos=True,
        user="somebody",
    )
    assert status == 200
    [asked] = verifier.requests
    assert asked.sampling == pb.SamplingOptions(
        **options,
        logit_bias={7: 2.0},
        stop_token_ids=[9],
        ignore_eos=True,
        max_output_tokens=8,
    )
    assert [bytes(word.values) for word in asked.bad_words] == [b"ab"]


async def test_defaults_are_those_of_openai(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    fields = {"prompt": PROMPT, "top_k": -1, "n": None, "response_format": {"type": "text"}}
    status, _ = await post(http, server, "/v1/completions", fields)
    assert status == 200
    [asked] = verifier.requests
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_output_tokens) == (1.0, 0, 62)
    assert not sampling.HasField("top_p")


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


def test_log_probabilities_of_what_is_no_text() -> None:
    def told(token: str | bytes, *others: str | bytes) -> pb.TokenLogProbs:
        known = [
            pb.TokenLogProb(token_id=len(each), log_prob=-1.0 - at, token=as_bytes(each))
            for at, each in enumerate((token, *others))
        ]
        return pb.TokenLogProbs(chosen=known[0], alternatives=known[1:])

    def as_bytes(token: str | bytes) -> bytes:
        return token.encode() if isinstance(token, str) else token

    smile = "🙂".encode()
    first, second, end = told("a"), told(smile[:2], smile[:3], "b"), told(smile[2:], "é")
    answer = TextAnswer("model", 1, 1, True)
    pieces = [
        *answer.pieces(0, pb.StreamGenerateResponse(text="a", log_probs=[first, second])),
        *answer.pieces(0, pb.StreamGenerateResponse(text="🙂.", log_probs=[end, told("")])),
    ]
    found = [piece["choices"][0]["logprobs"] for piece in pieces]
    assert [each["text_offset"] for each in found] == [[0, 1], [1, 2]]
    parts = r"bytes:\xf0\x9f", r"bytes:\x99\x82"
    assert [each["tokens"] for each in found] == [["a", parts[0]], [parts[1], "token_id:0"]]
    # The chosen token is among the likeliest, and each of them has a name of its own.
    assert found[0]["top_logprobs"][1] == {parts[0]: -1.0, parts[0] + r"\x99": -2.0, "b": -3.0}


@pytest.mark.parametrize("prompt", ["\x01\x02", PROMPT])
async def test_a_prompt_is_told_before_its_completion(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier, prompt: Any
) -> None:
    echoed = "\x01\x02" + TEXT
    _, found = await complete(http, server, prompt=[prompt, "\x03"], echo=True, n=2)
    texts = [choice["text"] for choice in found["choices"]]
    assert texts == [echoed] * 2 + ["\x03" + bytes(completion([3], 8)).decode()] * 2
    # A text is known without the verifier.
    assert verifier.requests[0].sampling.HasField("prompt_log_probs") == (prompt is PROMPT)
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


async def test_a_prompt_is_scored_without_a_completion(
    http: aiohttp.ClientSession, server: Running
) -> None:
    _, found = await complete(
        http, server, prompt=["\x01\x02", "\x03\x04"], echo=True, logprobs=1, max_tokens=0
    )
    for choice, text in zip(found["choices"], ("\x01\x02", "\x03\x04"), strict=True):
        assert (choice["text"], choice["finish_reason"]) == (text, "length")
        assert choice["logprobs"]["tokens"] == list(text)
        assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
    assert found["usage"]["completion_tokens"] == 0
    asked = body(prompt="\x01\x02", echo=True, max_tokens=0)
    pieces = await events(http, server, "/v1/completions", asked)
    assert "".join(one["choices"][0]["text"] for one in pieces) == "\x01\x02"
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"


async def test_the_least_top_p_leaves_the_likeliest_token(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    assert (await complete(http, server, top_p=0))[0] == 200
    assert 0 < verifier.requests[0].sampling.top_p < 1e-6


async def test_a_call_that_was_cut_off_stays_in_the_conversation(
    http: aiohttp.ClientSession, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is only rendered; refused, it would end the conversation for ever."""
    given: list[Any] = []

    def encode_chat(messages: Any, **options: Any) -> list[int]:
        given.extend(call["function"]["arguments"] for call in messages[0]["tool_calls"])
        return PROMPT

    monkeypatch.setattr(server.tokenizer, "encode_chat", encode_chat)
    texts = '{"where": "Os', "[1]", '{"where": "Oslo"}'
    calls = [{"function": {"name": "rain", "arguments": text}} for text in texts]
    messages = [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "?"}]
    assert (await chat(http, server, messages=messages))[0] == 200
    assert given == [*texts[:2], {"where": "Oslo"}]


async def test_tools_and_arguments_reach_the_template(
    http: aiohttp.ClientSession, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def encode_chat(messages: Any, **options: Any) -> list[int]:
        given.update(options, messages=messages)
        return PROMPT

    monkeypatch.setattr(server.tokenizer, "encode_chat", encode_chat)
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
    assert (await chat(http, server, reasoning_effort="high"))[0] == 200
    assert given["arguments"] == {"reasoning_effort": "high"}
    assert (await chat(http, server, reasoning_effort="none"))[0] == 200
    assert given["arguments"] == {"reasoning_effort": "none", "enable_thinking": False}


async def test_reasoning_and_calls_are_apart(
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


async def test_a_rendered_template_keeps_its_control_tokens(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    for options, prompt in (
        ({"parse_special": True}, [257, *b"uhi"]),
        # Whoever says nothing may have text of strangers in the prompt.
        ({"parse_special": False}, [*b"<turn>uhi"]),
        ({}, [*b"<turn>uhi"]),
    ):
        assert (await complete(http, server, prompt="<turn>uhi", **options))[0] == 200
        assert list(verifier.requests[-1].prompt_token_ids) == prompt
    status, body = await complete(http, server, prompt=[1], parse_special=True)
    assert (status, body["error"]["param"]) == (400, "parse_special")
    status, body = await chat(http, server, parse_special=True)
    assert (status, body["error"]["param"]) == (400, "parse_special")


async def test_flex_is_the_background(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    for tier, background in (("auto", False), ("priority", False), ("flex", True)):
        assert (await complete(http, server, service_tier=tier))[0] == 200
        assert verifier.requests[-1].background == background
