"""Both clients behind one asynchronous face, so that each test checks them both."""

import asyncio
from typing import Any

import pytest
from tests.fakes.inference import FakeInference

from blockdraft_client import AsyncClient, AsyncStream, Chunk, Client, Stream


async def on_any(
    what: Client | AsyncClient | Stream | AsyncStream, method: str, *args: Any, **options: Any
) -> Any:
    """Call a method that is a coroutine of one kind, and blocks in the other."""
    if isinstance(what, AsyncClient | AsyncStream):
        return await getattr(what, method)(*args, **options)
    return await asyncio.to_thread(getattr(what, method), *args, **options)


class Api:
    """A `Client` or an `AsyncClient`."""

    def __init__(self, kind: str, target: str, **options: Any) -> None:
        make: Any = Client if kind == "sync" else AsyncClient
        self.client: Client | AsyncClient = make(target, **options)

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method that gives one value."""
        return await on_any(self.client, method, *args, **options)

    async def read(
        self, *args: Any, limit: int | None = None, **options: Any
    ) -> tuple[list[Chunk], Stream | AsyncStream]:
        """Stream an answer; leaves the loop after `limit` chunks, without closing the stream."""
        stream = self.client.stream(*args, **options)
        chunks: list[Chunk] = []
        if isinstance(stream, AsyncStream):
            async for chunk in stream:
                chunks.append(chunk)
                if len(chunks) == limit:
                    break
            return chunks, stream

        def consume(stream: Stream) -> None:
            for chunk in stream:
                chunks.append(chunk)
                if len(chunks) == limit:
                    break

        await asyncio.to_thread(consume, stream)
        return chunks, stream

    async def __aenter__(self) -> "Api":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.call("close")


def interrupt_streams(service: FakeInference, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every answer be endless, and Ctrl-C come after its first chunk."""
    service.endless, service.delay_seconds = True, 0.01
    read = Stream.__next__

    def interrupted(self: Stream) -> Chunk:
        if self.text:
            raise KeyboardInterrupt
        return read(self)

    monkeypatch.setattr(Stream, "__next__", interrupted)
