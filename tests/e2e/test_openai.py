"""`blockdraft serve --openai` as clients of OpenAI use it, and a gateway in front of it."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from tests.e2e.openai_service import (
    PLAIN,
    READY_SECONDS,
    TEXT,
    Service,
    answers,
    running_service,
)
from tests.patience import PATIENCE_SECONDS, until
from tests.ports import free_ports

from blockdraft_client import ChatMessage, Client, OutputConstraint


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("openai")) as running:
        yield running


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.http}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def ours(service: Service) -> Iterator[Client]:
    with Client(service.grpc, timeout=READY_SECONDS) as client:
        yield client


def chat(client: openai.OpenAI, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": TEXT}]
    fields = {"model": "tiny", "messages": messages, "max_tokens": 24, "temperature": 0}
    return client.chat.completions.create(**{**fields, **options})


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1, "seed": 7}])
def test_a_conversation_gets_what_plain_decoding_gives(
    client: openai.OpenAI, ours: Client, options: dict[str, Any]
) -> None:
    prompt = [ChatMessage("user", TEXT)]
    plain = ours.generate(prompt, max_tokens=24, speculation=PLAIN, **options)
    found = chat(client, **options)
    [choice] = found.choices
    assert found.usage.prompt_tokens == plain.usage.prompt_tokens
    assert choice.message.content == plain.text
    assert choice.finish_reason == plain.finish_reason
    assert found.usage.completion_tokens == plain.usage.output_tokens
    stream = chat(client, stream=True, **options)
    pieces = [piece.choices[0].delta.content or "" for piece in stream if piece.choices]
    assert "".join(pieces) == plain.text


def test_a_text_is_continued(client: openai.OpenAI, ours: Client) -> None:
    plain = ours.generate(TEXT, max_tokens=24, speculation=PLAIN)
    found = client.completions.create(model="tiny", prompt=TEXT, max_tokens=24, temperature=0)
    assert found.choices[0].text == plain.text
    stop = plain.text[5:8]
    stopped = client.completions.create(
        model="tiny", prompt=TEXT, max_tokens=24, temperature=0, stop=[stop]
    )
    assert stopped.choices[0].text == plain.text[: plain.text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


async def test_many_ask_at_once_and_asynchronously(service: Service, ours: Client) -> None:
    plain = ours.generate([ChatMessage("user", TEXT)], max_tokens=24, speculation=PLAIN)
    async with openai.AsyncOpenAI(base_url=f"{service.http}/v1", api_key="none") as client:
        messages: Any = [{"role": "user", "content": TEXT}]
        asked = client.chat.completions.create
        found = await asyncio.gather(
            *(
                asked(model="tiny", messages=messages, max_tokens=24, temperature=0)
                for _ in range(8)
            )
        )
    assert {each.choices[0].message.content for each in found} == {plain.text}


def test_log_probabilities_and_several_choices(client: openai.OpenAI, ours: Client) -> None:
    prompt = [ChatMessage("user", TEXT)]
    plain = ours.generate(prompt, max_tokens=8, logprobs=2, speculation=PLAIN)
    found = chat(client, max_tokens=8, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    for mine, theirs in zip(found, plain.log_probs, strict=True):
        assert mine.logprob == pytest.approx(theirs.chosen.log_prob, abs=1e-4)
        assert len(mine.top_logprobs) == 2
    options = {"n": 3, "temperature": 1, "seed": 3, "logprobs": True}
    several = chat(client, **options).choices
    assert [choice.index for choice in several] == [0, 1, 2]
    told: list[str] = [""] * 3
    streamed: list[list[float]] = [[], [], []]
    for piece in chat(client, stream=True, **options):
        for choice in piece.choices:
            told[choice.index] += choice.delta.content or ""
            content = choice.logprobs.content if choice.logprobs else ()
            streamed[choice.index] += [each.logprob for each in content]
    for offset, choice in enumerate(several):
        alone = ours.generate(prompt, max_tokens=24, temperature=1, seed=3 + offset)
        assert choice.message.content == told[offset] == alone.text
        assert streamed[offset] == [each.logprob for each in choice.logprobs.content]


@pytest.fixture
def gateway(service: Service) -> Iterator[str]:
    """Run smg, which speaks vLLM's protocol to the server, and tokenizes by itself."""
    port = free_ports(2)
    flags = ["--host=127.0.0.1", f"--port={port}", f"--prometheus-port={port + 1}"]
    flags += [f"--worker-urls=grpc://{service.grpc}", "--log-level=error"]
    process = subprocess.Popen([sys.executable, "-m", "smg", "launch", *flags])
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/readiness"))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(READY_SECONDS)


def test_a_gateway_serves_responses_and_messages(gateway: str, ours: Client) -> None:
    text = ours.generate([ChatMessage("user", TEXT)], max_tokens=24, speculation=PLAIN).text
    with openai.OpenAI(base_url=f"{gateway}/v1", api_key="none") as client:
        found = client.responses.create(
            model="tiny", input=TEXT, max_output_tokens=24, temperature=0, store=False
        )
        chatted = chat(client)
    # It does not show the half of a character that a limit left.
    assert found.output_text == text.rstrip("\ufffd")
    assert chatted.choices[0].message.content == text.rstrip("\ufffd")
    body = {
        "model": "tiny",
        "max_tokens": 24,
        "temperature": 0,
        "messages": [{"role": "user", "content": TEXT}],
    }
    asked = urllib.request.Request(
        f"{gateway}/v1/messages", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS) as response:
        [content] = json.load(response)["content"]
    assert content["text"] == text.rstrip("\ufffd")


def test_the_usage_counts_drafted_tokens(client: openai.OpenAI) -> None:
    details = chat(client).usage.completion_tokens_details
    assert details.rejected_prediction_tokens + details.accepted_prediction_tokens > 0


def test_the_model_has_its_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError):
        chat(client, model="another")


@pytest.mark.parametrize("temperature", [0, 1])
def test_penalties_are_exact_under_drafting(
    client: openai.OpenAI, ours: Client, temperature: float
) -> None:
    sampling: Any = {"temperature": temperature, "seed": 7, "max_tokens": 24}
    usual: Any = {"frequency_penalty": 0.5, "presence_penalty": 0.25}
    more: Any = {"repetition_penalty": 1.3, "min_tokens": 12}
    prompt = [ChatMessage("user", TEXT)]
    plain = ours.generate(prompt, speculation=PLAIN, **sampling, **usual, **more)
    assert plain.token_ids != ours.generate(prompt, **sampling).token_ids
    found = chat(client, **sampling, **usual, extra_body=more)
    assert found.choices[0].message.content == plain.text
    bias = {plain.token_ids[0]: -100, 65: 5}
    plain = ours.generate(prompt, speculation=PLAIN, logit_bias=bias, **sampling)
    found = chat(client, **sampling, logit_bias={str(token): bias[token] for token in bias})
    assert found.choices[0].message.content == plain.text


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "legs": {"type": "integer"}},
    "required": ["colour", "legs"],
    "additionalProperties": False,
}
FORMS: list[tuple[OutputConstraint, dict[str, Any]]] = [
    (
        OutputConstraint(json_schema=SCHEMA),
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "duck", "schema": SCHEMA},
            }
        },
    ),
    (
        OutputConstraint(regex="day [a-f]{3,9}-[0-9]{4}"),
        {"extra_body": {"structured_outputs": {"regex": "day [a-f]{3,9}-[0-9]{4}"}}},
    ),
    (
        OutputConstraint(choice=["a duck", "a dove"]),
        {"extra_body": {"structured_outputs": {"choice": ["a duck", "a dove"]}}},
    ),
]


@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constraints_are_kept(
    client: openai.OpenAI, ours: Client, form: int, temperature: float
) -> None:
    constraint, fields = FORMS[form]
    sampling: Any = {"temperature": temperature, "seed": 7, "max_tokens": 60}
    prompt = [ChatMessage("user", TEXT)]
    plain = ours.generate(prompt, constraint=constraint, speculation=PLAIN, **sampling)
    drafted = ours.generate(prompt, constraint=constraint, **sampling)
    assert drafted.token_ids == plain.token_ids
    assert drafted.usage.forced_tokens > 0
    assert drafted.usage.verification_steps < plain.usage.verification_steps
    choice = chat(client, **sampling, **fields).choices[0]
    assert choice.message.content == plain.text
    assert choice.finish_reason == plain.finish_reason
    cut = chat(client, **sampling | {"max_tokens": 4}, **fields).choices[0]
    assert cut.finish_reason == "length"
    assert plain.text.startswith(cut.message.content or "")
    stop = plain.text[4:6]
    stopped = chat(client, **sampling, stop=[stop], **fields).choices[0]
    assert stopped.message.content == plain.text[: plain.text.index(stop)]
    assert stopped.finish_reason == "stop"


def test_a_killed_verifier_leaves_constrained_streams_as_they_are(
    service: Service, ours: Client
) -> None:
    prompt = [ChatMessage("user", TEXT)]
    constraint = OutputConstraint(regex="([a-z]{2,5} ){20}end")
    options: list[Any] = [
        {"seed": seed, "temperature": seed % 2, "max_tokens": 160, "constraint": constraint}
        for seed in range(4)
    ]
    expected = [ours.generate(prompt, speculation=PLAIN, **each).text for each in options]
    with ThreadPoolExecutor(len(options)) as threads:
        streams = [ours.stream(prompt, **each) for each in options]
        for stream in streams:
            next(stream)
        rest = [threads.submit(list, stream) for stream in streams]
        service.child("verifier").kill()
        for pieces in rest:
            pieces.result(READY_SECONDS)
        texts = [stream.text for stream in streams]
    assert texts == expected
    assert all(text.endswith("end") for text in texts)
