"""Both clients against servers and networks that fail."""

import asyncio
import gc
from typing import Any

import grpc
import pytest
from tests.client.api import Api, on_any
from tests.fakes.inference import FakeInference, RunningFake
from tests.patience import PATIENCE_SECONDS
from tests.ports import free_ports

from blockdraft_client import (
    ApiError,
    AsyncClient,
    AuthenticationError,
    Client,
    ConnectionFailedError,
    DeadlineExceededError,
    InternalServerError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RequestCancelledError,
    RetryConfig,
    UnavailableError,
)
from blockdraft_runtime.status import ServiceError, invalid_argument

Code = grpc.StatusCode

ERRORS = [
    (Code.INVALID_ARGUMENT, InvalidRequestError),
    (Code.OUT_OF_RANGE, InvalidRequestError),
    (Code.FAILED_PRECONDITION, InvalidRequestError),
    (Code.NOT_FOUND, NotFoundError),
    (Code.UNAUTHENTICATED, AuthenticationError),
    (Code.PERMISSION_DENIED, PermissionDeniedError),
    (Code.RESOURCE_EXHAUSTED, OverloadedError),
    (Code.UNAVAILABLE, UnavailableError),
    (Code.INTERNAL, InternalServerError),
    (Code.UNKNOWN, InternalServerError),
    (Code.DATA_LOSS, InternalServerError),
    (Code.ABORTED, ApiError),
]


@pytest.mark.parametrize("method", ["generate", "tokenize", "stream"])
async def test_each_status_has_its_error(kind: str, fake: RunningFake, method: str) -> None:
    metadata = {"request_id": "request-7", "limit": "3"}
    async with Api(kind, fake.target, retry=None) as api:
        for code, expected in ERRORS:
            fake.service.error = ServiceError(
                code, "SOME_REASON", "a sentence", metadata=metadata, retry_after_seconds=1.5
            )
            with pytest.raises(ApiError) as caught:
                await (api.read("hi") if method == "stream" else api.call(method, "hi"))
            error = caught.value
            assert type(error) is expected
            assert isinstance(error.__cause__, grpc.RpcError)
            assert (error.code, error.reason, error.message) == (code, "SOME_REASON", "a sentence")
            assert error.metadata == metadata
            assert (error.request_id, error.retry_after_seconds) == ("request-7", 1.5)
            assert (error.field, error.partial) == (None, None)


async def test_a_bad_request_names_the_field(api: Api, service: FakeInference) -> None:
    service.error = invalid_argument("sampling.top_p", "top_p must be in (0, 1]", got=7)
    with pytest.raises(InvalidRequestError, match=r"INVALID_ARGUMENT: top_p must be") as caught:
        await api.call("generate", "hi", top_p=7.0)
    assert caught.value.field == "sampling.top_p"
    assert caught.value.metadata == {"field": "sampling.top_p", "got": "7"}


async def test_a_request_beyond_the_size_limit_is_the_callers_fault(api: Api) -> None:
    # The same status code as a full queue, but made by grpc and without our details.
    with pytest.raises(InvalidRequestError) as caught:
        await api.call("generate", "x" * (2 << 20))
    assert caught.value.reason == "MESSAGE_TOO_LARGE"


async def test_a_broken_stream_keeps_what_arrived(api: Api, service: FakeInference) -> None:
    service.messages_before_error = 1
    service.error = ServiceError(Code.INTERNAL, "INTERNAL", "the verifier is gone")
    with pytest.raises(InternalServerError) as caught:
        await api.read("hi")
    partial = caught.value.partial
    assert partial is not None
    assert (partial.text, partial.token_ids) == ("one two three", (1, 2, 3))
    assert (partial.request_id, partial.model) == ("request-1", "fake")
    assert len(partial.log_probs) == 3
    assert caught.value.request_id == "request-1"


async def test_unavailable_is_retried_before_the_first_message(
    api: Api, service: FakeInference
) -> None:
    service.initial_failures = 2
    assert len((await api.read("hi"))[0]) == 2
    assert service.calls == ["StreamGenerate"] * 3


async def test_retries_end(kind: str, fake: RunningFake) -> None:
    fake.service.initial_failures = 9
    retry = RetryConfig(max_attempts=2, initial_backoff_seconds=0.01)
    async with Api(kind, fake.target, retry=retry) as api:
        with pytest.raises(UnavailableError, match="LOADING: still loading"):
            await api.call("generate", "hi")
        assert len(fake.service.calls) == 2


@pytest.mark.parametrize(("code", "messages"), [(Code.UNAVAILABLE, 1), (Code.INTERNAL, 0)])
async def test_nothing_else_is_retried(
    api: Api, service: FakeInference, code: grpc.StatusCode, messages: int
) -> None:
    service.messages_before_error = messages
    service.error = ServiceError(code, "REASON", "no")
    with pytest.raises(ApiError):
        await api.read("hi")
    assert len(service.calls) == 1


async def test_leaving_the_loop_cancels_the_call(api: Api, service: FakeInference) -> None:
    service.endless, service.delay_seconds = True, 0.01
    _, stream = await api.read("hi", limit=2)
    assert await asyncio.to_thread(service.cancelled.wait, PATIENCE_SECONDS)
    assert stream.usage is None


def test_leaving_the_block_cancels_the_call(fake: RunningFake) -> None:
    fake.service.endless, fake.service.delay_seconds = True, 0.01
    with Client(fake.target) as client:
        with client.stream("hi") as stream:
            next(stream)
        assert fake.service.cancelled.wait(PATIENCE_SECONDS)
        assert next(stream, None) is None


async def test_leaving_the_async_block_cancels_the_call(fake: RunningFake) -> None:
    fake.service.endless, fake.service.delay_seconds = True, 0.01
    async with AsyncClient(fake.target) as client:
        async with client.stream("hi") as stream:
            await anext(stream)
        assert await asyncio.to_thread(fake.service.cancelled.wait, PATIENCE_SECONDS)
        assert await anext(stream, None) is None


async def test_cancelling_the_task_cancels_the_call(fake: RunningFake) -> None:
    fake.service.endless, fake.service.delay_seconds = True, 0.01
    async with AsyncClient(fake.target) as client:
        stream = client.stream("hi")
        task = asyncio.create_task(stream.completion())
        while not stream.text:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(fake.service.cancelled.wait, PATIENCE_SECONDS)


async def test_another_reader_ends_when_the_stream_is_closed(
    api: Api, service: FakeInference
) -> None:
    service.endless, service.delay_seconds = True, 0.05
    stream = api.client.stream("hi")
    reader = asyncio.ensure_future(on_any(stream, "completion"))
    while not stream.text:
        await asyncio.sleep(0.01)
    await on_any(stream, "close")
    assert (await reader).finish_reason is None


async def test_closing_the_client_ends_its_calls(fake: RunningFake) -> None:
    fake.service.endless, fake.service.delay_seconds = True, 0.01
    client = Client(fake.target)
    stream = client.stream("hi")
    await asyncio.to_thread(next, stream)
    client.close()
    with pytest.raises(RequestCancelledError):
        await asyncio.to_thread(stream.completion)
    gc.collect()


@pytest.mark.parametrize("where", ["call", "client"])
async def test_a_deadline_ends_a_call_without_an_answer_and_is_named(
    kind: str, fake: RunningFake, where: str
) -> None:
    fake.service.gate.clear()
    async with Api(kind, fake.target, timeout=0.2 if where == "client" else None) as api:
        options: dict[str, Any] = {"timeout": 0.2} if where == "call" else {}
        named = f"the {where}'s timeout of 0.2 s passed"
        with pytest.raises(DeadlineExceededError, match=named):
            await api.call("generate", "hi", **options)
        with pytest.raises(DeadlineExceededError, match=named):
            await api.read("hi", **options)
        # Only now would the server answer.
        fake.service.gate.set()


async def test_the_servers_own_deadline_is_named(api: Api, service: FakeInference) -> None:
    service.error = ServiceError(Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", "not complete")
    for call in (api.call("generate", "hi"), api.read("hi")):
        with pytest.raises(DeadlineExceededError, match=r"server's own limit .* not complete"):
            await call


async def test_nobody_listening_is_not_waited_for(kind: str) -> None:
    target = f"127.0.0.1:{free_ports(1)}"
    # Whoever waits gets the error of the deadline.
    async with Api(kind, target, timeout=60.0) as api:
        with pytest.raises(ConnectionFailedError, match=f"cannot reach {target}"):
            await api.call("generate", "hi")
        with pytest.raises(ConnectionFailedError):
            await api.read("hi")
