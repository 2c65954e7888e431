"""Requests of any size get an answer that does not keep others waiting."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier, running_verifier
from tests.patience import PATIENCE_SECONDS
from tests.server.support import Running, failure, running_server, settings_for, until

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.held_loop import HeldLoop
from blockdraft_runtime.settings.server import LimitsSettings
from blockdraft_server.sizes import MAX_LISTED_TOKENS

SIZE = 4 << 20
METHOD = "/blockdraft.v1.InferenceService/"


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    limits = LimitsSettings(max_prompt_bytes=8 << 20)
    async with (
        running_verifier(FakeVerifier()) as address,
        running_server(settings_for(address, limits=limits)) as running,
    ):
        yield running


def packed_ids() -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest()
    request.prompt.token_ids.values.extend([7] * SIZE)
    return request


def empty_messages() -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest()
    part = inference_pb2.Conversation()
    for _ in range(1024):
        part.messages.add()
    whole = part.SerializeToString() * (SIZE // part.ByteSize())
    request.prompt.conversation.MergeFromString(whole)
    return request


def stop_tokens() -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(prompt=inference_pb2.Prompt(text="a"))
    request.sampling.stop_token_ids.extend([7] * SIZE)
    return request


def stop_sequence() -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(prompt=inference_pb2.Prompt(text="a"))
    request.sampling.stop_sequences.append("a" * SIZE)
    return request


def long_text() -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(prompt=inference_pb2.Prompt(text="a" * SIZE))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (packed_ids, "PROMPT_TOO_LONG"),
        (empty_messages, "INVALID_ARGUMENT"),
        (stop_tokens, "INVALID_ARGUMENT"),
        (stop_sequence, "INVALID_ARGUMENT"),
        (long_text, "PROMPT_TOO_LONG"),
    ],
)
async def test_what_is_too_large_is_refused_before_it_is_decoded(
    server: Running,
    make: Callable[[], inference_pb2.GenerateRequest],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = make().SerializeToString()
    began = time.monotonic()
    decoded = inference_pb2.GenerateRequest.FromString(data)
    list(decoded.prompt.token_ids.values)
    list(decoded.sampling.stop_token_ids)
    decoding = time.monotonic() - began
    raw: Any = server.channel.unary_unary(METHOD + "Generate")
    await failure(raw(b""))
    holds = []
    for _ in range(3):
        held = HeldLoop()
        held.start()
        error = await asyncio.wait_for(failure(raw(data)), PATIENCE_SECONDS)
        held.stop()
        assert error.reason == reason
        holds.append(held.longest_seconds)
    if make in (packed_ids, empty_messages, stop_tokens):
        # Far less than decoding alone would take; sending it from this process is part of it.
        assert min(holds) < decoding / 2


async def test_others_are_answered_while_a_long_prompt_is_listed(server: Running) -> None:
    count = MAX_LISTED_TOKENS
    request = inference_pb2.TokenizeRequest(prompt=inference_pb2.Prompt(text="a" * count))
    listing = asyncio.ensure_future(server.stub.Tokenize(request))
    answered = 0
    while not listing.done():
        await server.stub.GetModel(inference_pb2.GetModelRequest())
        answered += 1
    assert len((await listing).token_ids) == count
    # Held for the whole time, the event loop would answer one, at the end.
    assert answered > 1
    request.prompt.text = "a" * (MAX_LISTED_TOKENS + 1)
    error = await failure(server.stub.Tokenize(request))
    assert (error.code, error.reason) == (grpc.StatusCode.OUT_OF_RANGE, "PROMPT_TOO_LONG")


async def test_tokenizing_is_bounded_in_number() -> None:
    limits = LimitsSettings(max_waiting=1)
    async with (
        running_verifier(FakeVerifier()) as address,
        running_server(settings_for(address, limits=limits)) as server,
    ):
        request = inference_pb2.TokenizeRequest(prompt=inference_pb2.Prompt(text="a" * 100_000))
        calls = [server.stub.Tokenize(request) for _ in range(12)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, grpc.aio.AioRpcError)]
        assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        # Two are tokenized at once, and one may wait.
        assert 3 <= 12 - len(refused) < 12
        await server.stub.Tokenize(request)


async def test_a_message_beyond_all_limits_is_refused_by_the_transport() -> None:
    limits = LimitsSettings(max_prompt_bytes=1000)
    async with (
        running_verifier(FakeVerifier()) as address,
        running_server(settings_for(address, limits=limits)) as server,
    ):
        raw: Any = server.channel.unary_unary(METHOD + "Generate")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(long_text().SerializeToString())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await until(lambda: server.metric("event_loop_hold_seconds_count") > 0)
        await until(lambda: server.metric("event_loop_longest_hold_seconds") > 0)
