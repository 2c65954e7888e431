import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.reasons import error_reason

from blockdraft_runtime.status import (
    ServiceError,
    abort,
    error_from_proto,
    invalid_argument,
    received_error,
    stream_errors,
    unary_errors,
)


class Servicer:
    """Fails on demand; methods take and give bytes."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.closed = 0

    @unary_errors
    async def unary(self, request: bytes, context: Any) -> bytes:
        if self.error is not None:
            raise self.error
        return request

    @stream_errors
    async def stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            yield request
            if self.error is not None:
                raise self.error
            yield request
        finally:
            self.closed += 1


@contextlib.asynccontextmanager
async def running(servicer: Servicer) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(servicer.unary),
        "Stream": grpc.unary_stream_rpc_method_handler(servicer.stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.T", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def received(error: Exception) -> grpc.aio.AioRpcError:
    servicer = Servicer()
    servicer.error = error
    async with running(servicer) as channel:
        call: Any = channel.unary_unary("/test.T/Unary")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"x")
    return caught.value


@pytest.mark.parametrize(
    "sent",
    [
        ServiceError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "QUEUE_FULL",
            "full",
            metadata={"limit": 3},
            field="a.b",
            retry_after_seconds=1.5,
        ),
        ServiceError(grpc.StatusCode.UNAVAILABLE, "AWAY", "x"),
        invalid_argument("a[1]", "too big", value=7),
    ],
)
async def test_an_error_arrives_with_its_parts_and_no_others(sent: ServiceError) -> None:
    error = await received(sent)
    assert (error.code(), error.details()) == (sent.code, sent.message)
    back = received_error(error)
    assert back is not None
    assert vars(back) == vars(sent)


def test_the_parts_are_those_that_were_given() -> None:
    error = invalid_argument("a[1]", "too big", value=7)
    assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "a[1]")
    assert error.metadata == {"field": "a[1]", "value": "7"}
    assert (error.reason, error.retry_after_seconds) == ("INVALID_ARGUMENT", None)


async def test_an_unexpected_exception_is_internal_and_not_disclosed() -> None:
    error = await received(KeyError("secret"))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error_reason(error) == "INTERNAL"
    assert "secret" not in (error.details() or "")


async def test_an_error_whose_call_has_ended_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    class Ended:
        """What gRPC does where a deadline passes just then, about once in 600 tries."""

        async def abort_with_status(self, status: object) -> None:
            raise grpc.aio.InternalError

    with pytest.raises(asyncio.CancelledError):  # which gRPC takes for what it is
        await abort(Ended(), ServiceError(grpc.StatusCode.UNAVAILABLE, "AWAY", "too late"))  # type: ignore[arg-type]
    assert not caplog.records


async def test_an_error_of_another_service_has_no_reason() -> None:
    async with running(Servicer()) as channel:
        call: Any = channel.unary_unary("/test.T/Missing")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"x")
    assert received_error(caught.value) is None


async def test_a_stream_keeps_what_came_before_the_error() -> None:
    servicer = Servicer()
    servicer.error = ServiceError(grpc.StatusCode.UNAVAILABLE, "DRAINING", "x")
    async with running(servicer) as channel:
        method: Any = channel.unary_stream("/test.T/Stream")
        messages = aiter(method(b"x"))
        assert await anext(messages) == b"x"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(messages)
    assert error_reason(caught.value) == "DRAINING"
    assert servicer.closed == 1


async def test_closing_a_stream_runs_the_methods_cleanup_at_once() -> None:
    servicer = Servicer()
    stream: Any = servicer.stream(b"x", None)
    assert await anext(stream) == b"x"
    await stream.aclose()
    assert servicer.closed == 1


def test_a_code_that_grpc_does_not_know_is_unknown() -> None:
    status = invalid_argument("a", "x").to_proto()
    status.code = 99  # as from a newer process
    back = error_from_proto(status)
    assert back is not None
    assert (back.code, back.reason) == (grpc.StatusCode.UNKNOWN, "INVALID_ARGUMENT")


def test_what_a_caller_sent_does_not_make_an_error_too_long_to_travel() -> None:
    error = invalid_argument("role", f"got {'🦆' * 20_000}", value="🦆" * 20_000)
    assert len(error.message.encode()) < 520
    assert error.message.endswith("🦆…")
    assert len(error.metadata["value"].encode()) < 260
    assert len(error.to_proto().SerializeToString()) < 2000
