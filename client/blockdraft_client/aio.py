"""The client, for asyncio."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from blockdraft_client.aio_stream import AsyncStream
from blockdraft_client.config import (
    DEFAULT_KEEPALIVE,
    DEFAULT_RETRY,
    ApiKey,
    KeepAliveConfig,
    RetryConfig,
    TLSConfig,
)
from blockdraft_client.error_mapping import from_rpc_error
from blockdraft_client.errors import ConnectionFailedError, DeadlineExceededError, NotFoundError
from blockdraft_client.inspection import HealthStatus, ModelInfo, Tokenization
from blockdraft_client.params import Prompt, SamplingParams, SamplingShortcuts, SpeculationParams
from blockdraft_client.requests import generate_request, prompt_message, stream_request
from blockdraft_client.results import Completion
from blockdraft_client.settings import ClientSettings, Metadata
from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1.inference_pb2_grpc import InferenceServiceStub

if TYPE_CHECKING:
    from blockdraft_protos.v1.inference_pb2_grpc import InferenceServiceAsyncStub

    HealthCheck = grpc.aio.UnaryUnaryMultiCallable[
        health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    ]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

HEALTH_CHECK = "/grpc.health.v1.Health/Check"

# Pause between two looks at a server that answers but does not serve yet.
READY_POLL_SECONDS = 0.2


class AsyncClient:
    """A connection to a blockdraft server; for one event loop.

    Connects at the first call. Every method takes a `timeout` in seconds and `metadata` of its
    own, and raises a `BlockdraftError` when the call fails.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        api_key: ApiKey | None = None,
        tls: bool | TLSConfig | None = None,
        timeout: float | None = None,
        retry: RetryConfig | None = DEFAULT_RETRY,
        keepalive: KeepAliveConfig | None = DEFAULT_KEEPALIVE,
        metadata: Metadata = (),
        channel_options: Sequence[tuple[str, int | str]] = (),
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        """Prepare the connection.

        Args:
            target: Address of the server, such as `host:port` or `unix:/path`. Default:
                BLOCKDRAFT_TARGET, or else `localhost:50051`.
            api_key: The API key, or a function that is asked for it on every call. Default:
                BLOCKDRAFT_API_KEY. Never sent in plaintext beyond this machine.
            tls: Whether and how to encrypt. Default: on when BLOCKDRAFT_CA_CERT is set, or when
                there is an API key and the server is on another machine.
            timeout: Deadline of calls that name none, in seconds.
            retry: How to try again when the server is unavailable; None never does.
            keepalive: How to check a silent connection; None never does.
            metadata: Metadata of every call.
            channel_options: Options of the gRPC channel; they win over the client's own.
            channel: A channel to use instead of opening one; the caller closes it and answers
                for its encryption.

        Raises:
            ValueError: If an API key would travel in plaintext beyond this machine.
        """
        self._settings = ClientSettings.resolve(
            target,
            api_key=api_key,
            tls=tls,
            timeout=timeout,
            retry=retry,
            keepalive=keepalive,
            metadata=metadata,
            channel_options=channel_options,
            has_channel=channel is not None,
        )
        self._given_channel = channel

    # Opened on first use: grpc binds a channel to the running event loop, and a client may be
    # made before there is one.
    @functools.cached_property
    def _channel(self) -> grpc.aio.Channel:
        settings = self._settings
        if self._given_channel is not None:
            return self._given_channel
        if settings.credentials is None:
            return grpc.aio.insecure_channel(settings.target, settings.options)
        return grpc.aio.secure_channel(settings.target, settings.credentials, settings.options)

    @functools.cached_property
    def _stub(self) -> "InferenceServiceAsyncStub":
        return InferenceServiceStub(self._channel)

    @functools.cached_property
    def _check(self) -> "HealthCheck":
        return self._channel.unary_unary(
            HEALTH_CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

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

    @property
    def target(self) -> str:
        """Address of the server."""
        return self._settings.target

    async def generate(
        self,
        prompt: Prompt,
        *,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
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
            model: Name of the model; empty means the one that is served.
            timeout: Deadline in seconds.
            metadata: Metadata of this call.
            **shortcuts: Fields of `SamplingParams`; they win over `sampling`.
        """
        request = generate_request(prompt, sampling, speculation, model, shortcuts)
        return Completion.from_proto(
            await self._call(self._stub.Generate, request, timeout, metadata)
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        model: str = "",
        timeout: float | None = None,
        metadata: Metadata = (),
        **shortcuts: Unpack[SamplingShortcuts],
    ) -> AsyncStream:
        """Generate one answer and yield it in chunks; see `generate` for the arguments."""
        request = stream_request(prompt, sampling, speculation, model, shortcuts)
        return self.stream_request(request, timeout=timeout, metadata=metadata)

    def stream_request(
        self,
        request: inference_pb2.StreamGenerateRequest,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
    ) -> AsyncStream:
        """Send a request that was built by hand."""
        call = self._stub.StreamGenerate(
            request,
            timeout=self._settings.call_timeout(timeout),
            metadata=self._settings.call_metadata(metadata),
        )
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
        return Tokenization.from_proto(
            await self._call(self._stub.Tokenize, request, timeout, metadata)
        )

    async def model(
        self, name: str = "", *, timeout: float | None = None, metadata: Metadata = ()
    ) -> ModelInfo:
        """Return what is served under `name`; empty means the model this server serves."""
        request = inference_pb2.GetModelRequest(model=name)
        return ModelInfo.from_proto(
            await self._call(self._stub.GetModel, request, timeout, metadata)
        )

    async def health(
        self, service: str = "", *, timeout: float | None = None, metadata: Metadata = ()
    ) -> HealthStatus:
        """Return whether `service` takes requests; empty means the whole server."""
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = await self._call(self._check, request, timeout, metadata)
        except NotFoundError:
            return HealthStatus.SERVICE_UNKNOWN
        return HealthStatus(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    async def wait_ready(self, timeout: float) -> None:
        """Wait until the server takes requests, also while nobody listens yet.

        Raises:
            DeadlineExceededError: If it does not within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        request = health_pb2.HealthCheckRequest()
        serving = health_pb2.HealthCheckResponse.SERVING
        while (left := deadline - time.monotonic()) > 0:
            # A connection that breaks is one more way of not being ready yet.
            with contextlib.suppress(ConnectionFailedError, DeadlineExceededError):
                answer = await self._call(self._check, request, left, (), wait_for_ready=True)
                if answer.status == serving:
                    return
            await asyncio.sleep(min(READY_POLL_SECONDS, left))
        raise DeadlineExceededError(f"{self.target} was not ready within {timeout:g} s")

    async def _call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]",
        request: RequestT,
        timeout: float | None,
        metadata: Metadata,
        *,
        wait_for_ready: bool | None = None,
    ) -> ResponseT:
        try:
            return await method(
                request,
                timeout=self._settings.call_timeout(timeout),
                metadata=self._settings.call_metadata(metadata),
                wait_for_ready=wait_for_ready,
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from error
