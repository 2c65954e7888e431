"""The client, for asyncio."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from blockdraft_client.aio_stream import AsyncStream
from blockdraft_client.base import READY_POLL_SECONDS, ClientBase
from blockdraft_client.connection.endpoint import Metadata
from blockdraft_client.errors import ConnectionFailedError, DeadlineExceededError, NotFoundError
from blockdraft_client.inspection import HealthStatus, ModelInfo, Tokenization
from blockdraft_client.params import (
    Priority,
    Prompt,
    SamplingParams,
    SamplingShortcuts,
    SpeculationParams,
)
from blockdraft_client.results import Completion
from blockdraft_client.wire.error_mapping import from_rpc_error
from blockdraft_client.wire.requests import generation_request, prompt_message
from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1.inference_pb2_grpc import InferenceServiceStub

if TYPE_CHECKING:
    from blockdraft_protos.v1.inference_pb2_grpc import InferenceServiceAsyncStub

    HealthCheck = grpc.aio.UnaryUnaryMultiCallable[
        health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    ]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ResultT = TypeVar("ResultT")


class AsyncClient(ClientBase[grpc.aio.Channel]):
    """A connection to a blockdraft server; for one event loop.

    Connects at the first call. Every method takes a `timeout` in seconds and `metadata` of its
    own, and raises a `BlockdraftError` when the call fails.
    """

    # Opened on first use: grpc binds a channel to the running event loop, and a client may be
    # made before there is one.
    @functools.cached_property
    def _channel(self) -> grpc.aio.Channel:
        endpoint = self._endpoint
        if self._given_channel is not None:
            return self._given_channel
        if endpoint.credentials is None:
            return grpc.aio.insecure_channel(endpoint.target, endpoint.options)
        return grpc.aio.secure_channel(endpoint.target, endpoint.credentials, endpoint.options)

    @functools.cached_property
    def _stub(self) -> "InferenceServiceAsyncStub":
        return InferenceServiceStub(self._channel)

    @functools.cached_property
    def _check(self) -> "HealthCheck":
        # The types of grpc_health lack the method.
        check: HealthCheck = HealthStub(self._channel).Check  # type: ignore[attr-defined]
        return check

    async def __aenter__(self) -> "AsyncClient":
        """Return the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        if self._given_channel is None and "_channel" in vars(self):
            await self._channel.close()

    async def generate(
        self,
        prompt: Prompt,
        *,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        priority: Priority = "normal",
        model: str = "",
        timeout: float | None = None,
        metadata: Metadata = (),
        **shortcuts: Unpack[SamplingShortcuts],
    ) -> Completion:
        """Generate one whole answer.

        Args:
            prompt: Raw text, token ids, or a conversation.
            sampling: How to choose tokens and when to stop.
            speculation: Whether and how far to draft ahead; never changes the output.
            priority: Whether to give way to others where requests wait.
            model: Name of the model; empty means the one that is served.
            timeout: Deadline in seconds.
            metadata: Metadata of this call.
            **shortcuts: Fields of `SamplingParams`; they win over `sampling`.
        """
        request = generation_request(
            inference_pb2.GenerateRequest, prompt, sampling, speculation, priority, model, shortcuts
        )
        return await self._call(
            self._stub.Generate, request, Completion.from_proto, timeout, metadata
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        priority: Priority = "normal",
        model: str = "",
        timeout: float | None = None,
        metadata: Metadata = (),
        **shortcuts: Unpack[SamplingShortcuts],
    ) -> AsyncStream:
        """Generate one answer and yield it in chunks; see `generate` for the arguments."""
        request = generation_request(
            inference_pb2.StreamGenerateRequest,
            prompt,
            sampling,
            speculation,
            priority,
            model,
            shortcuts,
        )
        return self.stream_request(request, timeout=timeout, metadata=metadata)

    def stream_request(
        self,
        request: inference_pb2.StreamGenerateRequest,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
    ) -> AsyncStream:
        """Send a request that was built by hand."""
        call = self._stub.StreamGenerate(request, **self._endpoint.call_options(timeout, metadata))
        return AsyncStream(call, self.target)

    async def tokenize(
        self,
        prompt: Prompt,
        *,
        model: str = "",
        timeout: float | None = None,
        metadata: Metadata = (),
    ) -> Tokenization:
        """Return the tokens of a prompt exactly as generation would see them."""
        request = inference_pb2.TokenizeRequest(model=model, prompt=prompt_message(prompt))
        return await self._call(
            self._stub.Tokenize, request, Tokenization.from_proto, timeout, metadata
        )

    async def model(
        self, name: str = "", *, timeout: float | None = None, metadata: Metadata = ()
    ) -> ModelInfo:
        """Return what is served under `name`; empty means the model this server serves."""
        request = inference_pb2.GetModelRequest(model=name)
        return await self._call(
            self._stub.GetModel, request, ModelInfo.from_proto, timeout, metadata
        )

    async def health(
        self, service: str = "", *, timeout: float | None = None, metadata: Metadata = ()
    ) -> HealthStatus:
        """Return whether `service` takes requests; empty means the whole server."""
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            return await self._call(
                self._check, request, HealthStatus.from_proto, timeout, metadata
            )
        except NotFoundError:
            return HealthStatus.SERVICE_UNKNOWN

    async def wait_ready(self, timeout: float) -> None:
        """Wait until the server takes requests, also while nobody listens yet.

        Raises:
            DeadlineExceededError: If it does not within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        request = health_pb2.HealthCheckRequest()
        while (left := deadline - time.monotonic()) > 0:
            # A connection that breaks is one more way of not being ready yet.
            with contextlib.suppress(ConnectionFailedError, DeadlineExceededError):
                status = await self._call(
                    self._check, request, HealthStatus.from_proto, left, (), wait_for_ready=True
                )
                if status is HealthStatus.SERVING:
                    return
            await asyncio.sleep(min(READY_POLL_SECONDS, left))
        raise self._not_ready(timeout)

    async def _call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]",
        request: RequestT,
        read: Callable[[ResponseT], ResultT],
        timeout: float | None,
        metadata: Metadata,
        *,
        wait_for_ready: bool | None = None,
    ) -> ResultT:
        try:
            response = await method(
                request,
                **self._endpoint.call_options(timeout, metadata),
                wait_for_ready=wait_for_ready,
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from error
        return read(response)
