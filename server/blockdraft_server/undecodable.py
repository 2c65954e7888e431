"""Requests that cannot be decoded, told as what they are.

gRPC for Python ends such calls with INTERNAL, as if the server were at fault. Registered through
`add_strictly`, they end with INVALID_ARGUMENT, reason MALFORMED_REQUEST.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from blockdraft_runtime.status import ServiceError, abort


class _Undecodable:
    """Takes the place of a request whose bytes are no such message."""


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
    add_to_server: Callable[[Any, Any], None], servicer: object, server: grpc.aio.Server
) -> None:
    """Register `servicer` so that undecodable requests get a typed error.

    Args:
        add_to_server: The generated function, such as `add_InferenceServiceServicer_to_server`.
        servicer: The servicer; its methods take single requests, not streams.
        server: Where to register it.
    """
    collector = _Collector()
    add_to_server(servicer, collector)
    for service, methods in collector.services.items():
        strict = {name: _strict(method) for name, method in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, strict),))


def _strict(handler: Any) -> Any:
    if handler.request_streaming:
        raise ValueError("methods with request streams are not supported")

    def deserialize(data: bytes) -> object:
        try:
            return handler.request_deserializer(data)
        except DecodeError:
            return _Undecodable()

    async def unary(request: object, context: Any) -> Any:
        if isinstance(request, _Undecodable):
            await abort(context, _malformed())
        return await handler.unary_unary(request, context)

    async def stream(request: object, context: Any) -> AsyncIterator[Any]:
        if isinstance(request, _Undecodable):
            await abort(context, _malformed())
        async for response in handler.unary_stream(request, context):
            yield response

    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(
            stream, deserialize, handler.response_serializer
        )
    return grpc.unary_unary_rpc_method_handler(unary, deserialize, handler.response_serializer)


def _malformed() -> ServiceError:
    return ServiceError(
        grpc.StatusCode.INVALID_ARGUMENT,
        "MALFORMED_REQUEST",
        "the request is not a valid message of its type; text must be UTF-8",
    )
