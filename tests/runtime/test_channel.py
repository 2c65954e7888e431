"""Connections that are half open: nothing comes through any more, and neither end has closed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from tests.fakes.verifier import unix_address
from tests.patience import PATIENCE_SECONDS
from tools.chaos.proxy import Proxy

from blockdraft_client.base import all_channel_options
from blockdraft_client.params import DEFAULT_KEEPALIVE
from blockdraft_runtime.channel import CLIENT_OPTIONS, SERVER_OPTIONS

Options = Sequence[tuple[str, int | str]]
# gRPC waits a minute for the reply to a ping unless told otherwise.
PROMPT_SECONDS = PATIENCE_SECONDS / 2


def sooner(options: Options) -> list[tuple[str, int | str]]:
    """Return options with a tenth of their times, so that the test need not wait for them."""
    return [(name, int(value) // 10 if name.endswith("_ms") else value) for name, value in options]


@contextlib.asynccontextmanager
async def ticking(
    server_options: Options, client_options: Options
) -> AsyncIterator[tuple[Proxy, Any, asyncio.Event]]:
    """Give a call that is told something a hundred times a second, and the event of its end."""
    ended = asyncio.Event()

    async def tick(_: object, context: Any) -> AsyncIterator[bytes]:
        context.add_done_callback(lambda _: ended.set())
        while True:
            yield b"tick"
            await asyncio.sleep(0.01)

    server = grpc.aio.server(options=tuple(server_options))
    handlers: Any = {"Tick": grpc.stream_stream_rpc_method_handler(tick)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ticking", handlers),))
    with unix_address() as behind, unix_address() as front:
        proxy = Proxy(front, behind)
        await proxy.start()
        server.add_insecure_port(behind)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(front, options=tuple(client_options)) as channel:
                method: Any = channel.stream_stream("/ticking/Tick")
                call = method()
                assert await call.read() == b"tick"
                yield proxy, call, ended
        finally:
            await proxy.close()
            await server.stop(None)


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.mark.parametrize(
    "options",
    [CLIENT_OPTIONS, all_channel_options(None, DEFAULT_KEEPALIVE, None, ())],
    ids=["internal", "sdk"],
)
async def test_a_caller_that_waits_gets_an_error(options: Options) -> None:
    async with ticking(SERVER_OPTIONS, sooner(options)) as (proxy, call, _):
        await asyncio.sleep(0.2)
        proxy.leave_half_open()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(read_all(call), PROMPT_SECONDS)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_server_lets_go() -> None:
    async with ticking(sooner(SERVER_OPTIONS), ()) as (proxy, _, ended):
        await asyncio.sleep(0.2)
        proxy.leave_half_open()
        async with asyncio.timeout(PROMPT_SECONDS):
            await ended.wait()
