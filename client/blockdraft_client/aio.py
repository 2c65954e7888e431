"""The client and its streamed completions, for asyncio."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from blockdraft_client.base import READY_POLL_SECONDS, ClientBase
from blockdraft_client.constraints import OutputConstraint, ParsedT
from blockdraft_client.error_mapping import from_rpc_error
from blockdraft_client.errors import ConnectionFailedError, DeadlineExceededError, NotFoundError
from blockdraft_client.model_info import ModelInfo
from blockdraft_client.params import CallOptions, GenerationOptions, Prompt
from blockdraft_client.parsing import parsed_completion
from blockdraft_client.requests import generation_request, prompt_message
from blockdraft_client.results import Chunk, Completion, HealthStatus, Tokenization
from blockdraft_client.stream import StreamedCompletion
from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1.inference_pb2_grpc import InferenceServiceStub

if TYPE_CHECKING:
    from blockdraft_protos.v1.inference_pb2_grpc import InferenceServiceAsyncStub

    AsyncStreamCall = grpc.aio.UnaryStreamCall[
        inference_pb2.StreamGenerateRequest, inference_pb2.StreamGenerateResponse
    ]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ResultT = TypeVar("ResultT")


class AsyncStream(StreamedCompletion["AsyncStreamCall", ParsedT], AsyncIterator[Chunk]):
    """A completion that arrives in chunks; also an async context manager.

    Leaving the `async for` loop or the `async with` block early cancels the call, which frees
    what the server holds for it. `usage`, `finish_reason` and so on are complete after the last
    chunk.
    """

    async def __aenter__(self) -> Self:
        """Return the stream."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Cancel the call unless it has ended."""
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield the chunks to come."""
        # Not `self`: the event loop closes a generator that is no longer read.
        try:
            while (chunk := await anext(self, None)) is not None:
                yield chunk
        finally:
            await self.close()

    async def __anext__(self) -> Chunk:
        """Wait for the next chunk; a `BlockdraftError` has as `partial` what had arrived."""
        if self._closed:
            raise StopAsyncIteration
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            if self._closed:  # by another task
                raise StopAsyncIteration from None
            raise self._broken(error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and (task is None or not task.cancelling()):
                # grpc tells a reader of a call that another task closed in this way.
                raise StopAsyncIteration from None
            await self.close()
            raise
        if not isinstance(message, inference_pb2.StreamGenerateResponse):  # grpc.aio.EOF
            self._closed = True
            raise StopAsyncIteration
        return self._add(message)

    async def close(self) -> None:
        """Cancel the call unless it has ended."""
        self._closed = True
        self._call.cancel()

    async def completion(self) -> Completion[ParsedT]:
        """Wait for the rest and return the whole completion.

        `InvalidOutputError` if it is not what `response_format` asks for.
        """
        async for _ in self:
            pass
        return self._completion()


class AsyncClient(ClientBase[grpc.aio.Channel]):
    """A connection to a blockdraft server; for one event loop.

    Connects at the first call. Every method takes a `timeout` in seconds and `metadata` of its
    own, and raises a `BlockdraftError` when the call fails.
    """

    # Opened on first use: grpc binds a channel to the running event loop, and a client may be
    # made before there is one.
    @functools.cached_property
    def _channel(self) -> grpc.aio.Channel:
        if self._given_channel is not None:
            return self._given_channel
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.address, self._options)
        return grpc.aio.secure_channel(self.address, self._credentials, self._options)

    @functools.cached_property
    def _stub(self) -> "InferenceServiceAsyncStub":
        return InferenceServiceStub(self._channel)

    @functools.cached_property
    def _check(self) -> Any:
        # The types of grpc_health lack the method.
        return HealthStub(self._channel).Check  # type: ignore[attr-defined]

    async def __aenter__(self) -> "AsyncClient":
        """Return the client."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the connection."""
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls in flight are cancelled, later ones refused."""
        self._closed = True
        if self._given_channel is None and "_channel" in vars(self):
            await self._channel.close()

    async def generate(
        self, prompt: Prompt, **options: Unpack[GenerationOptions[ParsedT]]
    ) -> Completion[ParsedT]:
        """Generate one whole completion; see `Client.generate`."""
        request, call, form = generation_request(inference_pb2.GenerateRequest, prompt, options)
        read = functools.partial(parsed_completion, form=form)
        return await self._call(self._stub.Generate, request, read, call)

    def stream(
        self, prompt: Prompt, **options: Unpack[GenerationOptions[ParsedT]]
    ) -> AsyncStream[ParsedT]:
        """Generate one completion and yield it in chunks; see `Client.stream`."""
        request, call, form = generation_request(
            inference_pb2.StreamGenerateRequest, prompt, options
        )
        return self._stream(request, call, form)

    def stream_request(
        self, request: inference_pb2.StreamGenerateRequest, **options: Unpack[CallOptions]
    ) -> AsyncStream:
        """Send a request that was built by hand."""
        return self._stream(request, options)

    def _stream(
        self,
        request: inference_pb2.StreamGenerateRequest,
        options: CallOptions,
        form: OutputConstraint | None = None,
    ) -> AsyncStream[ParsedT]:
        call = self._stub.StreamGenerate(request, **self._call_arguments(**options))
        return AsyncStream(call, self.address, self._deadline(**options), form)

    async def tokenize(
        self, prompt: Prompt, *, model: str = "", **options: Unpack[CallOptions]
    ) -> Tokenization:
        """Return the tokens of a prompt exactly as generation would see them."""
        request = inference_pb2.TokenizeRequest(model=model, prompt=prompt_message(prompt))
        return await self._call(self._stub.Tokenize, request, Tokenization.from_proto, options)

    async def model(self, name: str = "", **options: Unpack[CallOptions]) -> ModelInfo:
        """Return the model served under `name`; empty means the model this server serves."""
        request = inference_pb2.GetModelRequest(model=name)
        return await self._call(self._stub.GetModel, request, ModelInfo.from_proto, options)

    async def health(self, service: str = "", **options: Unpack[CallOptions]) -> HealthStatus:
        """Return whether `service` takes requests; empty means the whole server."""
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            return await self._call(self._check, request, HealthStatus.from_proto, options)
        except NotFoundError:
            return HealthStatus.SERVICE_UNKNOWN

    async def wait_ready(self, timeout: float) -> None:
        """Wait until the server takes requests; see `Client.wait_ready`."""
        deadline = time.monotonic() + timeout
        request = health_pb2.HealthCheckRequest()
        while (remaining := deadline - time.monotonic()) > 0:
            # A connection that breaks is one more way of not being ready yet.
            with contextlib.suppress(ConnectionFailedError, DeadlineExceededError):
                status = await self._call(
                    self._check, request, HealthStatus.from_proto, {"timeout": remaining}, True
                )
                if status is HealthStatus.SERVING:
                    return
            await asyncio.sleep(min(READY_POLL_SECONDS, remaining))
        raise self._not_ready(timeout)

    async def _call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]",
        request: RequestT,
        read: Callable[[ResponseT], ResultT],
        options: CallOptions,
        wait_for_ready: bool | None = None,
    ) -> ResultT:
        try:
            response = await method(
                request, wait_for_ready=wait_for_ready, **self._call_arguments(**options)
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.address, self._deadline(**options)) from error
        return read(response)
