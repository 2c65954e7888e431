"""A proxy between two processes whose connections can be cut, delayed and left half open."""

import asyncio
import contextlib
from collections.abc import Callable

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_CHUNK = 65536


class _Connection:
    """One connection through the proxy."""

    def __init__(self, near: Streams, far: Streams) -> None:
        self.near, self.far = near, far
        self.silent = False

    def abort(self) -> None:
        for _, writer in (self.near, self.far):
            writer.transport.abort()


class Proxy:
    """Passes connections on from one address to another, `host:port` or `unix:/path`.

    Attributes:
        delay_seconds: How late everything arrives.
        address: Where it listens.
    """

    def __init__(self, address: str, to: str) -> None:
        """Pass on nothing until `start`."""
        self.address = address
        self.delay_seconds = 0.0
        self._to = to
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()

    @property
    def connections(self) -> int:
        """How many connections there are, half-open ones included."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen."""
        self._server = await _listen(self.address, self._accept)

    async def close(self) -> None:
        """Listen no longer and end all connections, half-open ones too."""
        self._closed.set()
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._passing)

    def cut(self) -> None:
        """Reset all connections, but for those that are half open."""
        for connection in tuple(self._connections):
            if not connection.silent or self._closed.is_set():
                connection.abort()

    def leave_half_open(self) -> None:
        """Let the connections carry nothing any more without telling either side.

        Nobody reads from them, so writers meet full buffers in the end. New connections are good.
        """
        for connection in self._connections:
            connection.silent = True

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._pass_on(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far = await _connect(self._to)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection((reader, writer), far)
        self._connections.add(connection)
        try:
            pumps = (
                asyncio.ensure_future(self._pump(connection, reader, far[1])),
                asyncio.ensure_future(self._pump(connection, far[0], writer)),
            )
            # gRPC never closes one direction only.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._connections.discard(connection)
            connection.abort()

    async def _pump(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                if connection.silent:
                    break
                writer.write(chunk)
                await writer.drain()
        if connection.silent:
            await self._closed.wait()


async def _listen(
    address: str, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
) -> asyncio.Server:
    if address.startswith("unix:"):
        return await asyncio.start_unix_server(serve, address.removeprefix("unix:"))
    host, port = address.rsplit(":", 1)
    return await asyncio.start_server(serve, host, int(port))


async def _connect(address: str) -> Streams:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, port = address.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))
