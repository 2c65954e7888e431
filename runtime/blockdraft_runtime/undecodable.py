"""Requests that cannot or must not be decoded, told as what they are.

gRPC for Python ends calls that cannot be decoded with INTERNAL, as if the server were at fault.
Registered through `add_strictly`, they end with INVALID_ARGUMENT, reason MALFORMED_REQUEST. What is
too large is refused by its bytes.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from blockdraft_runtime.status import ServiceError, abort

Check = Callable[[str, bytes], None]


class _Refused:
    """Takes the place of a request that was not decoded."""

    def __init__(self, error: ServiceError) -> None:
        self.error = error


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
    check: Check = lambda method, data: None,
) -> None:
    """Register `servicer` so that requests that are not decoded get a typed error.

    Args:
        add_to_server: The generated function, such as `add_InferenceServiceServicer_to_server`.
        servicer: The servicer. Its methods on streams of requests hear of one that was not decoded
            by the `ServiceError` that the stream raises.
        server: Where to register it.
        check: Called with a method's name and an encoded request; refuses it with `ServiceError`.
    """
    collector = _Collector()
    add_to_server(servicer, collector)
    for service, methods in collector.services.items():
        strict = {name: _strict(method, partial(check, name)) for name, method in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, strict),))


def _strict(handler: Any, check: Callable[[bytes], None]) -> Any:
    def deserialize(data: bytes) -> object:
        try:
            check(data)
            return handler.request_deserializer(data)
        except ServiceError as error:
            return _Refused(error)
        except DecodeError:
            return _Refused(malformed())

    async def unary(request: object, context: Any) -> Any:
        if isinstance(request, _Refused):
            await abort(context, request.error)
        return await handler.unary_unary(request, context)

    async def stream(request: object, context: Any) -> AsyncIterator[Any]:
        if isinstance(request, _Refused):
            await abort(context, request.error)
        async with contextlib.aclosing(handler.unary_stream(request, context)) as responses:
            async for response in responses:
                yield response

    async def both(requests: AsyncIterator[object], context: Any) -> AsyncIterator[Any]:
        decoded = _decoded(requests)
        async with contextlib.aclosing(handler.stream_stream(decoded, context)) as responses:
            async for response in responses:
                yield response

    serialize = handler.response_serializer
    if handler.request_streaming:
        if not handler.response_streaming:
            raise ValueError("methods with a stream of requests and one answer are not supported")
        return grpc.stream_stream_rpc_method_handler(both, deserialize, serialize)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(stream, deserialize, serialize)
    return grpc.unary_unary_rpc_method_handler(unary, deserialize, serialize)


async def _decoded(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    """Yield the requests of a stream; `ServiceError` at one that was not decoded."""
    async for request in requests:
        if isinstance(request, _Refused):
            raise request.error
        yield request


def malformed() -> ServiceError:
    """Return the error for bytes that are no message of the method's type."""
    return ServiceError(
        grpc.StatusCode.INVALID_ARGUMENT,
        "MALFORMED_REQUEST",
        "the request is not a valid message of its type; text must be UTF-8",
    )
