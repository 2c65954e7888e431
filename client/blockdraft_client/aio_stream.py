"""A streamed answer, for asyncio."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

import grpc

from blockdraft_client.results import Chunk, Completion
from blockdraft_client.wire.streamed_answer import StreamedAnswer
from blockdraft_protos.v1 import inference_pb2

if TYPE_CHECKING:
    AsyncStreamCall = grpc.aio.UnaryStreamCall[
        inference_pb2.StreamGenerateRequest, inference_pb2.StreamGenerateResponse
    ]


class AsyncStream(StreamedAnswer["AsyncStreamCall"], AsyncIterator[Chunk]):
    """An answer that arrives in chunks; also an async context manager.

    Leaving the `async for` loop or the `async with` block early cancels the call, which frees
    what the server holds for it. `usage`, `finish_reason` and so on are complete after the last
    chunk.
    """

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

    async def completion(self) -> Completion:
        """Wait for the rest and return the whole answer."""
        async for _ in self:
            pass
        return self._completion()
