import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from tests.fakes.verifier import unix_address
from tests.patience import PATIENCE_SECONDS
from tools.chaos.proxy import Proxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def echo_behind_proxy() -> AsyncIterator[Proxy]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(100):
                writer.write(chunk)
                await writer.drain()
        writer.close()

    with unix_address() as behind, unix_address() as front:
        server = await asyncio.start_unix_server(echo, behind.removeprefix("unix:"))
        proxy = Proxy(front, behind)
        await proxy.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield proxy
        await proxy.close()
        server.close()


async def connect(proxy: Proxy) -> Streams:
    return await asyncio.open_unix_connection(proxy.address.removeprefix("unix:"))


async def said(streams: Streams, what: bytes) -> bytes:
    """Return what comes back."""
    streams[1].write(what)
    return await streams[0].read(100)


async def test_passes_on_and_delays() -> None:
    async with echo_behind_proxy() as proxy:
        streams = await connect(proxy)
        assert await said(streams, b"a") == b"a"
        proxy.delay_seconds = 0.05
        began = time.monotonic()
        assert await said(streams, b"b") == b"b"
        assert time.monotonic() - began >= 0.1
        streams[1].close()


async def test_a_cut_ends_what_is_there_and_nothing_else() -> None:
    async with echo_behind_proxy() as proxy:
        streams = await connect(proxy)
        assert await said(streams, b"a") == b"a"
        proxy.cut()
        with contextlib.suppress(ConnectionError):
            assert await streams[0].read(100) == b""
        streams[1].close()
        again = await connect(proxy)
        assert await said(again, b"b") == b"b"
        again[1].close()


async def test_a_half_open_connection_is_silent_but_there() -> None:
    async with echo_behind_proxy() as proxy:
        streams = await connect(proxy)
        assert await said(streams, b"a") == b"a"
        proxy.leave_half_open()
        answer = asyncio.ensure_future(said(streams, b"b"))
        again = await connect(proxy)
        assert await said(again, b"c") == b"c"
        proxy.cut()
        while proxy.connections > 1:
            await asyncio.sleep(0.01)
        assert not answer.done()
        answer.cancel()
        streams[1].close()
        again[1].close()
