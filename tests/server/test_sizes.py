"""Requests of any size get an answer that does not keep others waiting."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.patience import PATIENCE_SECONDS
from tests.server.support import Running, failure, serving, until

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime import status
from blockdraft_runtime.settings.server import LimitsSettings
from blockdraft_server.constraints import MAX_CONSTRAINT_BYTES
from blockdraft_server.sizes import MAX_LISTED_TOKENS

SIZE = 4 << 20
METHOD = "/blockdraft.v1.InferenceService/"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what gets the length of each request that a server decodes."""
    strict, lengths = status._strict, list[int]()

    def noting(handler: Any, check: Callable[[bytes], None]) -> Any:
        def deserialize(data: bytes) -> object:
            lengths.append(len(data))
            return handler.request_deserializer(data)

        return strict(handler._replace(request_deserializer=deserialize), check)

    monkeypatch.setattr(status, "_strict", noting)
    return lengths


@pytest.fixture
async def server(decoded: list[int]) -> AsyncIterator[Running]:
    limits = LimitsSettings(max_prompt_bytes=8 << 20)
    async with serving(FakeVerifier(), limits=limits) as running:
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


def constraint() -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(prompt=inference_pb2.Prompt(text="a"))
    request.sampling.constraint.json_schema = " " * SIZE
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
        (constraint, "INVALID_ARGUMENT"),
        (long_text, "PROMPT_TOO_LONG"),
    ],
)
async def test_what_is_too_large_is_refused_before_it_is_decoded(
    server: Running,
    decoded: list[int],
    make: Callable[[], inference_pb2.GenerateRequest],
    reason: str,
) -> None:
    data = make().SerializeToString()
    raw: Any = server.channel.unary_unary(METHOD + "Generate")
    # What is small is decoded and found to have no prompt.
    assert (await failure(raw(b""))).reason == "INVALID_ARGUMENT"
    error = await asyncio.wait_for(failure(raw(data)), PATIENCE_SECONDS)
    assert error.reason == reason
    assert decoded == [0]


async def test_a_constraint_may_be_long() -> None:
    verifier = FakeVerifier()
    async with serving(verifier, limits=LimitsSettings(max_prompt_bytes=1000)) as server:
        request = long_text()
        request.prompt.text = "a" * 60
        schema = '{"description": "%s"}'
        room = MAX_CONSTRAINT_BYTES - len(schema) - len("abcd")
        request.sampling.constraint.json_schema = schema % ("x" * room)
        await server.stub.Generate(request)
        assert len(verifier.requests[0].grammar) > room
        request.sampling.constraint.json_schema += " " * 20
        error = await failure(server.stub.Generate(request))
        assert error.field == "sampling.constraint"


def blocked(server: Running, method: str) -> tuple[threading.Event, threading.Event]:
    """Let a method of the tokenizer wait; return what says that it does, and what ends it."""
    tokenizer = server.tokenizer
    waits, goes_on, real = threading.Event(), threading.Event(), getattr(tokenizer, method)

    def wait(what: object) -> object:
        waits.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        return real(what)

    setattr(tokenizer, method, wait)
    return waits, goes_on


async def test_others_are_answered_while_a_long_prompt_is_listed(server: Running) -> None:
    count = MAX_LISTED_TOKENS
    listed, goes_on = blocked(server, "token_bytes")
    request = inference_pb2.TokenizeRequest(prompt=inference_pb2.Prompt(text="a" * count))
    listing = asyncio.ensure_future(server.stub.Tokenize(request))
    await until(listed.is_set)
    await server.stub.GetModel(inference_pb2.GetModelRequest())
    assert not listing.done()
    goes_on.set()
    assert len((await listing).token_ids) == count
    request.prompt.text = "a" * (MAX_LISTED_TOKENS + 1)
    error = await failure(server.stub.Tokenize(request))
    assert (error.code, error.reason) == (grpc.StatusCode.OUT_OF_RANGE, "PROMPT_TOO_LONG")


async def test_tokenizing_is_bounded_in_number() -> None:
    limits = LimitsSettings(max_waiting=1)
    async with serving(FakeVerifier(), limits=limits) as server:
        _, goes_on = blocked(server, "encode")
        request = inference_pb2.TokenizeRequest(prompt=inference_pb2.Prompt(text="a" * 100_000))
        calls = [asyncio.ensure_future(server.stub.Tokenize(request)) for _ in range(12)]
        # Two are tokenized at once, and one may wait.
        await until(lambda: sum(call.done() for call in calls) == 9)
        goes_on.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, grpc.aio.AioRpcError)]
        assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert len(refused) == 9
        await server.stub.Tokenize(request)


async def test_a_message_beyond_all_limits_is_refused_by_the_transport() -> None:
    limits = LimitsSettings(max_prompt_bytes=1000)
    async with serving(FakeVerifier(), limits=limits) as server:
        raw: Any = server.channel.unary_unary(METHOD + "Generate")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(long_text().SerializeToString())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await until(lambda: server.metric("event_loop_hold_seconds_count") > 0)
        await until(lambda: server.metric("event_loop_longest_hold_seconds") > 0)


# Text that is no UTF-8, as field 2 of a request; and one that is cut off.
@pytest.mark.parametrize("data", [b"\x12\x03\x0a\x01\xff", b"\x12\x7f\x0a"])
async def test_undecodable_requests_get_a_typed_error(server: Running, data: bytes) -> None:
    unary: Any = server.channel.unary_unary
    stream: Any = server.channel.unary_stream(METHOD + "StreamGenerate")
    calls = [unary(METHOD + method)(data) for method in ("Generate", "Tokenize")]
    for call in (*calls, stream(data).read()):
        error = await failure(call)
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.reason == "MALFORMED_REQUEST"
