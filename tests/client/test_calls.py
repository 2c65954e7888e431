"""Every method of both clients against a server that does what it should."""

import inspect
from typing import Any

import pytest
from tests.client.api import Api, on_any
from tests.fakes.inference import TEXT, TOKEN_IDS, USAGE, FakeInference, RunningFake, running_fake
from tests.patience import PATIENCE_SECONDS
from tests.ports import free_ports

import blockdraft
import blockdraft_client
from blockdraft_client import (
    AsyncClient,
    AsyncStream,
    ChatMessage,
    Client,
    DeadlineExceededError,
    FinishReason,
    HealthStatus,
    SamplingParams,
    SpeculationParams,
    Stream,
    Usage,
)
from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime import version


async def test_generate_returns_the_whole_answer(api: Api, service: FakeInference) -> None:
    done = await api.call("generate", "hi", max_tokens=8, stop="!", temperature=0.5)
    assert (done.text, done.token_ids) == (TEXT, TOKEN_IDS)
    assert done.finish_reason is FinishReason.STOP
    assert (done.request_id, done.model) == ("request-1", "fake")
    assert done.usage == Usage.from_proto(USAGE)
    assert done.proto.usage == USAGE
    (request,) = service.requests
    assert request.prompt.text == "hi"
    assert request.sampling.max_output_tokens == 8
    assert list(request.sampling.stop_sequences) == ["!"]
    assert not request.sampling.HasField("seed")
    assert not request.HasField("speculation")


async def test_a_stream_yields_steps_and_then_knows_the_rest(api: Api) -> None:
    chunks, stream = await api.read("hi", logprobs=0)
    assert [chunk.text for chunk in chunks] == ["one two three", " four five six"]
    assert [chunk.token_ids for chunk in chunks] == [(1, 2, 3), (4, 5, 6)]
    assert chunks[0].log_probs[0].chosen.log_prob == -0.5
    assert stream.text == TEXT
    assert stream.usage == Usage.from_proto(USAGE)
    assert stream.finish_reason is FinishReason.STOP
    assert (stream.request_id, stream.model) == ("request-1", "fake")


async def test_a_stream_can_be_taken_as_one_answer(api: Api) -> None:
    done = await on_any(api.client.stream("hi"), "completion")
    assert (done.text, done.token_ids, done.model) == (TEXT, TOKEN_IDS, "fake")
    assert (len(done.log_probs), len(done.prompt_log_probs)) == (6, 1)
    assert done.usage == Usage.from_proto(USAGE)


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ("text", "text"),
        ([1, 2], "token_ids"),
        ([], "token_ids"),
        ([ChatMessage("user", "hi")], "conversation"),
        ([{"role": "user", "content": "hi"}], "conversation"),
    ],
)
async def test_a_prompt_has_three_forms(
    api: Api, service: FakeInference, prompt: Any, field: str
) -> None:
    tokens = await api.call("tokenize", prompt)
    assert (tokens.token_ids, tokens.tokens) == ((7, 8), (b"a", b"\xc3"))
    assert service.requests[0].prompt.WhichOneof("content") == field


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ([1.5], TypeError),
        ([1, "a"], TypeError),
        ([{"role": "user"}], ValueError),
        ([{"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}], ValueError),
        ([{"role": "assistant", "content": "", "tool_calls": ["c"]}], ValueError),
        ([{"role": "assistant", "content": "", "tool_calls": [{"function": 1}]}], ValueError),
    ],
)
async def test_a_wrong_prompt_is_not_sent(
    api: Api, service: FakeInference, prompt: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await api.call("generate", prompt)
    assert not service.calls


async def test_tools_and_arguments_go_with_a_conversation(api: Api, service: FakeInference) -> None:
    function = {"name": "rain", "arguments": '{"where": "here"}'}
    messages = [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "yes", "tool_call_id": "c1"},
    ]
    options: Any = {"tools": [{"x": 1}], "template_arguments": {"enable_thinking": False}}
    await api.call("generate", messages, **options)
    conversation = service.requests[0].prompt.conversation
    assert list(conversation.tools) == ['{"x": 1}']
    assert conversation.template_arguments == '{"enable_thinking": false}'
    call, answer = conversation.messages
    assert list(call.tool_calls) == [inference_pb2.ToolCall(id="c1", **function)]
    assert (call.reasoning_content, answer.tool_call_id) == ("Hm.", "c1")
    with pytest.raises(ValueError, match="are for conversations"):
        await api.call("generate", "hi", tools=[{"x": 1}])


async def test_shortcuts_win_over_sampling(api: Api, service: FakeInference) -> None:
    sampling = SamplingParams(seed=1, top_k=5)
    speculation = SpeculationParams(disabled=True, max_draft_tokens=3, prompt_lookup_disabled=True)
    await api.call("generate", "hi", sampling=sampling, speculation=speculation, seed=2)
    assert service.requests[0].sampling == inference_pb2.SamplingOptions(seed=2, top_k=5)
    assert service.requests[0].speculation.disabled
    assert service.requests[0].speculation.max_draft_tokens == 3
    assert service.requests[0].speculation.prompt_lookup_disabled
    assert service.requests[0].priority == inference_pb2.PRIORITY_NORMAL
    await api.call("generate", "hi", priority="background")
    assert service.requests[1].priority == inference_pb2.PRIORITY_BACKGROUND
    with pytest.raises(ValueError, match="normal, background"):
        await api.call("generate", "hi", priority="urgent")
    with pytest.raises(TypeError, match="best_of"):
        await api.call("generate", "hi", best_of=2)


async def test_model_describes_target_and_drafter(api: Api, service: FakeInference) -> None:
    model = await api.call("model")
    assert (model.name, model.max_context_tokens, model.server_version) == ("fake", 64, "1.2.3")
    assert (model.drafter.method, model.drafter.trained) == ("dflash", False)
    service.model = inference_pb2.GetModelResponse(model="fake")
    assert (await api.call("model")).drafter is None


async def test_health_follows_the_server(api: Api, fake: RunningFake) -> None:
    assert await api.call("health") is HealthStatus.SERVING
    fake.set_serving(False)
    assert await api.call("health") is HealthStatus.NOT_SERVING
    assert await api.call("health", "nobody") is HealthStatus.SERVICE_UNKNOWN


async def test_wait_ready_gives_up_on_a_server_that_does_not_serve(
    api: Api, fake: RunningFake
) -> None:
    await api.call("wait_ready", PATIENCE_SECONDS)
    fake.set_serving(False)
    with pytest.raises(DeadlineExceededError, match=r"not ready within 0\.4 s"):
        await api.call("wait_ready", 0.4)


async def test_wait_ready_outlasts_a_server_that_is_not_there_yet(kind: str) -> None:
    # Not one that other tests are given once it is free.
    port = free_ports(1)
    async with Api(kind, f"127.0.0.1:{port}") as api:
        with pytest.raises(DeadlineExceededError):
            await api.call("wait_ready", 0.3)
        with running_fake(port=port):
            await api.call("wait_ready", PATIENCE_SECONDS)


def test_both_clients_and_both_streams_have_one_surface() -> None:
    pairs: list[tuple[type, type]] = [(Client, AsyncClient), (Stream, AsyncStream)]
    for sync, asynchronous in pairs:
        assert _surface(sync) == _surface(asynchronous)


def _surface(kind: type) -> dict[str, list[str]]:
    members = {
        name: member
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") or name == "__init__"
    }
    return {
        name: list(inspect.signature(member).parameters) if callable(member) else []
        for name, member in members.items()
    }


@pytest.mark.parametrize("name", blockdraft_client.__all__)
def test_every_exported_name_has_a_value(name: str) -> None:
    value = getattr(blockdraft_client, name)
    if isinstance(value, type):
        assert value.__name__ == name


def test_the_project_has_a_package_of_its_name() -> None:
    assert blockdraft.Client is Client
    assert [name for name in blockdraft_client.__all__ if not hasattr(blockdraft, name)] == []
    assert blockdraft.__version__ == blockdraft_client.__version__ == version()


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Server'"):
        _ = blockdraft_client.Server  # type: ignore[attr-defined]  # the point of the test
