"""A streamed answer, for asyncio."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

import grpc

from blockdraft_client.error_mapping import from_rpc_error
from blockdraft_client.results import Chunk, Completion, FinishReason
from blockdraft_client.stream_state import StreamState
from blockdraft_client.usage import Usage
from blockdraft_protos.v1 import inference_pb2

if TYPE_CHECKING:
    AsyncStreamCall = grpc.aio.UnaryStreamCall[
        inference_pb2.StreamGenerateRequest, inference_pb2.StreamGenerateResponse
    ]


class AsyncStream(AsyncIterator[Chunk]):
    """An answer that arrives in chunks; also an async context manager.

    Leaving the `async for` loop or the `async with` block early cancels the call, which frees
    what the server holds for it. `usage`, `finish_reason` and so on are complete after the last
    chunk.
    """

    def __init__(self, call: "AsyncStreamCall", target: str) -> None:
        """Read `call`, which was made to `target`."""
        self._call = call
        self._target = target
        self._state = StreamState()
        self._closed = False

    async def __aenter__(self) -> "AsyncStream":
        """Return the stream."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel the call unless it has ended."""
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield the chunks to come."""
        # Not `self`: the loop closes a generator that nobody reads any more.
        try:
            while (chunk := await anext(self, None)) is not None:
                yield chunk
        finally:
            await self.close()

    async def __anext__(self) -> Chunk:
        """Wait for the next chunk.

        Raises:
            BlockdraftError: If the call fails; `partial` is what had arrived.
        """
        if self._closed:
            raise StopAsyncIteration
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            if self._closed:  # by another task
                raise StopAsyncIteration from None
            self._closed = True
            raise from_rpc_error(error, self._target, self._state.partial()) from error
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
        return self._state.add(message)

    async def close(self) -> None:
        """Cancel the call unless it has ended."""
        self._closed = True
        self._call.cancel()

    async def completion(self) -> Completion:
        """Wait for the rest and return the whole answer."""
        async for _ in self:
            pass
        return self._state.completion()

    @property
    def text(self) -> str:
        """The text so far."""
        return self._state.text

    @property
    def usage(self) -> Usage | None:
        """What the request consumed; None before the last chunk."""
        return self._state.usage

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why generation ended; None before the last chunk."""
        return self._state.finish_reason

    @property
    def request_id(self) -> str:
        """Identifier of the request; empty before the first chunk."""
        return self._state.request_id

    @property
    def model(self) -> str:
        """Name of the model that answers; empty before the first chunk."""
        return self._state.model
