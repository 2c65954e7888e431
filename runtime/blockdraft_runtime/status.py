"""Errors a caller is told about, as `google.rpc.Status` with an `ErrorInfo`.

Every error of every service goes through here, so that each carries a machine-readable reason
(listed in docs/errors.md), the values its message mentions, and where it helps a `BadRequest` or
`RetryInfo` detail. Source: AIP-193.

gRPC for Python ends calls that cannot be decoded with INTERNAL, as if the server were at fault.
Services that are registered through `add_strictly` end them with INVALID_ARGUMENT, reason
MALFORMED_REQUEST; their `check` can refuse a request by its bytes, before it is decoded.
"""

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

logger = logging.getLogger(__name__)

ERROR_DOMAIN = "blockdraft"

# A status travels in headers, of which gRPC may refuse more than 8 KiB: an error that repeats what
# a caller sent would not reach it. The message is in there three times, once in a longer encoding.
_MOST_MESSAGE_BYTES = 512
_MOST_VALUE_BYTES = 256


class ServiceError(Exception):
    """An error with everything the caller needs to act on it.

    Attributes:
        code: The gRPC status code.
        reason: UPPER_SNAKE_CASE identifier of the cause, stable across versions.
        message: One sentence for a person; cut off after 512 bytes.
        metadata: Every dynamic value the message mentions; each is cut off after 256 bytes.
        field: Path of the request field at fault, if one is.
        retry_after_seconds: When to try again, if that may help.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        *,
        metadata: Mapping[str, object] | None = None,
        field: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Keep the parts; see the class for their meaning."""
        self.code = code
        self.reason = reason
        self.message = _shortened(message, _MOST_MESSAGE_BYTES)
        super().__init__(self.message)
        self.metadata = {
            key: _shortened(str(value), _MOST_VALUE_BYTES)
            for key, value in (metadata or {}).items()
        }
        self.field = field
        self.retry_after_seconds = retry_after_seconds

    def to_status(self) -> grpc.Status:
        """Return the status to abort a call with."""
        return rpc_status.to_status(self.to_proto())

    def to_proto(self) -> Status:
        """Return the error as a message, for where it ends only a part of a call."""
        details: list[Message] = [
            ErrorInfo(reason=self.reason, domain=ERROR_DOMAIN, metadata=self.metadata)
        ]
        if self.field is not None:
            violation = BadRequest.FieldViolation(field=self.field, description=self.message)
            details.append(BadRequest(field_violations=[violation]))
        if self.retry_after_seconds is not None:
            delay = Duration()
            delay.FromNanoseconds(int(self.retry_after_seconds * 1e9))
            details.append(RetryInfo(retry_delay=delay))
        packed = []
        for detail in details:
            packed.append(AnyMessage())
            packed[-1].Pack(detail)
        number: int = self.code.value[0]
        return Status(code=number, message=self.message, details=packed)


def _shortened(text: str, most_bytes: int) -> str:
    data = text.encode()
    return text if len(data) <= most_bytes else data[:most_bytes].decode(errors="ignore") + "…"


def invalid_argument(field: str, message: str, **metadata: object) -> ServiceError:
    """Return the error for a request field that is out of range or malformed."""
    return ServiceError(
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_ARGUMENT",
        message,
        metadata={"field": field, **metadata},
        field=field,
    )


def malformed() -> ServiceError:
    """Return the error for bytes that are no message of the method's type."""
    return ServiceError(
        grpc.StatusCode.INVALID_ARGUMENT,
        "MALFORMED_REQUEST",
        "the request is not a valid message of its type; text must be UTF-8",
    )


def received_error(error: grpc.RpcError) -> ServiceError | None:
    """Return the `ServiceError` that a failed call carries, or None when it has none of ours.

    A process between two others passes errors on with it: `raise received_error(error)`.
    """
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # AioRpcError is a Call in fact
    return error_from_proto(status) if status is not None else None


def details_of(status: Status) -> tuple[ErrorInfo | None, str | None, float | None]:
    """Return the reason if it is one of ours, the field at fault, and when to try again."""
    info, bad_request, retry = ErrorInfo(), BadRequest(), RetryInfo()
    detail_types = {
        type(detail)
        for packed in status.details
        for detail in (info, bad_request, retry)
        if packed.Unpack(detail)
    }
    violations = bad_request.field_violations
    return (
        info if info.domain == ERROR_DOMAIN else None,
        violations[0].field if violations else None,
        retry.retry_delay.ToNanoseconds() / 1e9 if RetryInfo in detail_types else None,
    )


def error_from_proto(status: Status) -> ServiceError | None:
    """Return the `ServiceError` in a status, or None when it has none of ours."""
    info, field, retry_after_seconds = details_of(status)
    if info is None:
        return None
    codes = {code.value[0]: code for code in grpc.StatusCode}
    return ServiceError(
        # As gRPC does with numbers that it does not know.
        codes.get(status.code, grpc.StatusCode.UNKNOWN),
        info.reason,
        status.message,
        metadata=info.metadata,
        field=field,
        retry_after_seconds=retry_after_seconds,
    )


def service_error(error: Exception) -> ServiceError:
    """Return the error for a caller: an unexpected exception is logged and becomes INTERNAL."""
    if isinstance(error, ServiceError):
        return error
    logger.error("unexpected error while serving a call", exc_info=error)
    return ServiceError(
        grpc.StatusCode.INTERNAL, "INTERNAL", "internal error; the server's log has the cause"
    )


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    """End a call with `service_error` of an exception."""
    try:
        await context.abort_with_status(service_error(error).to_status())
    except grpc.aio.InternalError as ended:
        # The call has ended meanwhile, as at its deadline: no caller is left, and gRPC would log it
        # as an error of ours, with a traceback.
        raise asyncio.CancelledError from ended


UnaryMethod = TypeVar("UnaryMethod", bound=Callable[..., Awaitable[Any]])
StreamMethod = TypeVar("StreamMethod", bound=Callable[..., AsyncIterator[Any]])


def unary_errors(method: UnaryMethod) -> UnaryMethod:
    """Wrap a unary servicer method so that exceptions end the call with a typed status."""

    @functools.wraps(method)
    async def wrapper(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except Exception as error:
            await abort(context, error)

    return wrapper  # type: ignore[return-value]  # same signature, which mypy cannot see


def stream_errors(method: StreamMethod) -> StreamMethod:
    """Wrap a streaming servicer method so that exceptions end the call with a typed status."""

    @functools.wraps(method)
    async def wrapper(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            # Closed here, not by the garbage collector: the method's `finally` blocks free
            # what the call holds, also when the call was cancelled between two messages.
            responses = cast(AsyncGenerator[Any, None], method(self, request, context))
            async with contextlib.aclosing(responses):
                async for response in responses:
                    yield response
        except Exception as error:
            await abort(context, error)

    return wrapper  # type: ignore[return-value]  # same signature, which mypy cannot see


class _Collector:
    """Takes the place of a server in generated `add_…_to_server` functions."""

    def __init__(self) -> None:
        self.services: dict[str, Mapping[str, Any]] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignore the handlers in the form that hides the methods."""

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, Any]) -> None:
        """Keep the handlers in the form that shows the methods."""
        self.services[service] = methods


def add_strictly(
    add_to_server: Callable[[Any, Any], None],
    servicer: object,
    server: grpc.aio.Server,
    check: Callable[[str, bytes], None] = lambda method, data: None,
) -> None:
    """Register `servicer` so that requests that cannot be decoded get a typed error.

    A stream of requests raises this `ServiceError` in its method. `add_to_server` is the generated
    function, such as `add_…Servicer_to_server`. `check` takes a method's name and an encoded
    request, and raises `ServiceError` to refuse it.
    """
    collector = _Collector()
    add_to_server(servicer, collector)
    for service, methods in collector.services.items():
        strict = {name: _strict(method, partial(check, name)) for name, method in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, strict),))


def _strict(handler: Any, check: Callable[[bytes], None]) -> Any:
    def deserialize(data: bytes) -> object:
        """Return the request, or the error for a request that is refused."""
        try:
            check(data)
            return handler.request_deserializer(data)
        except ServiceError as error:
            return error
        except DecodeError:
            return malformed()

    async def unary(request: object, context: Any) -> Any:
        if isinstance(request, ServiceError):
            await abort(context, request)
        return await handler.unary_unary(request, context)

    async def stream(request: object, context: Any) -> None:
        if isinstance(request, ServiceError):
            await abort(context, request)
        answering = handler.unary_stream(request, context)
        if inspect.isawaitable(answering):
            await answering  # It writes the responses itself.
            return
        async with contextlib.aclosing(answering) as responses:
            async for response in responses:
                await context.write(response)

    async def both(requests: AsyncIterator[object], context: Any) -> AsyncIterator[Any]:
        decoded = _decoded(requests)
        async with contextlib.aclosing(handler.stream_stream(decoded, context)) as responses:
            async for response in responses:
                yield response

    serialize = handler.response_serializer
    if handler.request_streaming:
        if not handler.response_streaming:
            raise ValueError("methods with a stream of requests and one response are not supported")
        return grpc.stream_stream_rpc_method_handler(both, deserialize, serialize)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(stream, deserialize, serialize)
    return grpc.unary_unary_rpc_method_handler(unary, deserialize, serialize)


async def _decoded(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    async for request in requests:
        if isinstance(request, ServiceError):
            raise request
        yield request
