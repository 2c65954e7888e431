"""`blockdraft serve --openai` as clients of OpenAI use it: through smg, to the same tokens."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.e2e.openai_service import PLAIN, READY_SECONDS, TEXT, Service, running_service, whole
from tests.patience import PATIENCE_SECONDS, until

from blockdraft_client import ChatMessage, Client

TOOL = {"type": "function", "function": {"name": "dive", "parameters": {"type": "object"}}}


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
    # The gateway tokenizes by itself, and drafts are verified behind it.
    assert found.usage.prompt_tokens == plain.usage.prompt_tokens
    assert choice.message.content == whole(plain.text)
    assert choice.finish_reason == plain.finish_reason
    assert found.usage.completion_tokens == plain.usage.output_tokens
    stream = chat(client, stream=True, **options)
    pieces = [piece.choices[0].delta.content or "" for piece in stream if piece.choices]
    assert "".join(pieces) == whole(plain.text)


def test_a_text_is_continued(client: openai.OpenAI, ours: Client) -> None:
    plain = ours.generate(TEXT, max_tokens=24, speculation=PLAIN)
    found = client.completions.create(model="tiny", prompt=TEXT, max_tokens=24, temperature=0)
    assert found.choices[0].text == whole(plain.text)
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
    assert {each.choices[0].message.content for each in found} == {whole(plain.text)}


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
    told, streamed = [""] * 3, [set[float](), set[float](), set[float]()]
    for piece in chat(client, stream=True, **options):
        for choice in piece.choices:
            told[choice.index] += choice.delta.content or ""
            content = choice.logprobs.content if choice.logprobs else ()
            streamed[choice.index] |= {each.logprob for each in content}
    for offset, choice in enumerate(several):
        alone = ours.generate(prompt, max_tokens=24, temperature=1, seed=3 + offset)
        assert choice.message.content == told[offset] == whole(alone.text)
        # The gateway streams none of tokens that end within a character.
        assert streamed[offset]
        assert streamed[offset] <= {each.logprob for each in choice.logprobs.content}


def test_responses_and_messages(service: Service, client: openai.OpenAI, ours: Client) -> None:
    plain = ours.generate([ChatMessage("user", TEXT)], max_tokens=24, speculation=PLAIN)
    found = client.responses.create(
        model="tiny", input=TEXT, max_output_tokens=24, temperature=0, store=False
    )
    assert found.output_text == whole(plain.text)
    body = {
        "model": "tiny",
        "max_tokens": 24,
        "temperature": 0,
        "messages": [{"role": "user", "content": TEXT}],
    }
    asked = urllib.request.Request(
        f"{service.http}/v1/messages",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS) as response:
        [content] = json.load(response)["content"]
    assert content["text"] == whole(plain.text)


def test_the_usage_counts_drafted_tokens(client: openai.OpenAI) -> None:
    details = chat(client).usage.completion_tokens_details
    assert details.rejected_prediction_tokens + details.accepted_prediction_tokens > 0


def test_the_model_has_its_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError):
        chat(client, model="another")


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, "json_schema"),
        ({"tools": [TOOL], "tool_choice": "required"}, "json_schema"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    client: openai.OpenAI, option: dict[str, Any], field: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=f"sampling_params.{field} is not supported"):
        chat(client, **option)


def test_nobody_may_give_the_gateway_other_workers(service: Service) -> None:
    asked = urllib.request.Request(
        f"{service.http}/workers",
        json.dumps({"url": "grpc://127.0.0.1:1"}).encode(),
        {"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS)
    raised.value.close()
    assert raised.value.code in (401, 403)


def test_a_prompt_that_is_too_long_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        chat(client, messages=[{"role": "user", "content": "duck " * 500}])


def test_a_gateway_that_dies_is_started_again(service: Service, client: openai.OpenAI) -> None:
    first = service.gateway()
    assert first is not None
    first.kill()
    until(lambda: service.gateway() not in (None, first))
    until(service.ready)
    assert chat(client).choices[0].message.content
