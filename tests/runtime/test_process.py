import asyncio
import contextlib
import os
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from prometheus_client import CollectorRegistry, Counter, Histogram
from tests.certificates import Authority, write_peer
from tests.fakes.verifier import unix_address
from tests.patience import PATIENCE_SECONDS

from blockdraft_protos.v1 import debug_pb2, debug_pb2_grpc
from blockdraft_runtime.credentials import OtherProcess, peer_server_credentials
from blockdraft_runtime.process import serve
from blockdraft_runtime.settings.process import ProcessSettings

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class App:
    """Records its life; loads until told to go on."""

    role = "tester"
    service_names: Sequence[str] = ("test.T",)

    def __init__(self, *, internal: bool = False, loaded: bool = False) -> None:
        self.internal = internal
        self.loaded = asyncio.Event()
        self.life: list[str] = []
        self.failure: Exception | None = None
        if loaded:
            self.loaded.set()

    def register(self, server: grpc.aio.Server) -> None:
        self.life.append("register")

    async def start(self) -> None:
        try:
            await self.loaded.wait()
        except asyncio.CancelledError:
            self.life.append("cancelled")
            raise
        if self.failure is not None:
            raise self.failure
        self.life.append("start")

    async def drain(self) -> None:
        self.life.append("drain")

    async def stop(self) -> None:
        self.life.append("stop")

    def inspect(self) -> dict[str, object]:
        return {"life": self.life, "parts": [{"name": "a", "count": 3}, {"name": "b"}]}


@contextlib.asynccontextmanager
async def running(
    app: App, metrics_port: int | None = None, **options: Any
) -> AsyncIterator[tuple[str, str, asyncio.Event]]:
    """Serve an application; give its address, its control address and what tells it is ready."""
    ready, stop = asyncio.Event(), asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    with unix_address() as address:
        control = address.replace("v.sock", "control.sock")
        listen = ProcessSettings(address, metrics_port, drain_seconds=1, control_address=control)
        serving = asyncio.ensure_future(
            serve(app, listen, stop_requested=stop, on_ready=on_ready, **options)
        )
        yield address, control, ready
        stop.set()
        await asyncio.wait_for(serving, PATIENCE_SECONDS)


async def status(channel: grpc.aio.Channel, service: str = "", *, wait: bool = False) -> int:
    async with channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        response = await stub.Check(request, timeout=PATIENCE_SECONDS, wait_for_ready=wait)
        return int(response.status)


async def status_at(address: str, service: str = "") -> int:
    return await status(grpc.aio.insecure_channel(address), service, wait=True)


@pytest.mark.usefixtures("hang_ups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_health_follows_the_life_of_the_process(number: signal.Signals) -> None:
    app = App()
    async with running(app) as (address, control, ready):
        assert await status_at(address) == NOT_SERVING
        assert await status_at(control, "test.T") == NOT_SERVING
        app.loaded.set()
        await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
        assert await status_at(address) == SERVING
        assert await status_at(control, "test.T") == SERVING
        os.kill(os.getpid(), number)
        while "stop" not in app.life:
            await asyncio.sleep(0.01)
    assert app.life == ["register", "start", "drain", "stop"]


async def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        app = App()
        async with running(app):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_second_address_wants_certificates_and_the_first_one_does_not(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    tls = write_peer(tmp_path, Authority("peers"))
    second = f"localhost:{unused_tcp_port}"
    how = peer_server_credentials(second, tls)
    async with running(App(), second=(second, how)) as (address, _, _):
        assert await status_at(address) == NOT_SERVING
        assert await status(OtherProcess(second, tls).aio_channel()) == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError):
            await status(grpc.aio.insecure_channel(second))


async def test_a_stop_while_loading_cancels_the_loading() -> None:
    app = App()
    async with running(app) as (address, _, _):
        assert await status_at(address) == NOT_SERVING
    assert app.life == ["register", "drain", "cancelled", "stop"]


async def test_a_failure_to_load_ends_the_process() -> None:
    app = App(loaded=True)
    app.failure = RuntimeError("no such model")
    with unix_address() as address, pytest.raises(RuntimeError, match="no such model"):
        await serve(app, ProcessSettings(address))
    assert app.life == ["register", "stop"]


async def test_a_callers_health_servicer_may_change_while_serving() -> None:
    health = HealthServicer()
    async with running(App(loaded=True), health=health) as (address, _, ready):
        await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
        await health.set("", NOT_SERVING)
        assert await status_at(address) == NOT_SERVING


async def test_an_address_in_use_is_an_error() -> None:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{port}"):
            await serve(App(), ProcessSettings(f"127.0.0.1:{port}"))
    finally:
        await server.stop(None)


async def test_a_unix_socket_of_another_process_is_left_to_it() -> None:
    taken = "another process listens there"
    async with running(App(loaded=True)) as (address, control, ready):
        await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
        with pytest.raises(OSError, match=f"{address}: {taken}"):
            await serve(App(), ProcessSettings(address))
        with unix_address() as free, pytest.raises(OSError, match=f"{control}: {taken}"):
            await serve(App(), ProcessSettings(free, control_address=control))
        assert await status_at(address) == SERVING
        assert await status_at(control) == SERVING


async def test_a_unix_socket_that_a_killed_process_left_is_replaced() -> None:
    stop = asyncio.Event()

    async def end() -> None:
        stop.set()

    with unix_address() as address:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(address.removeprefix("unix:"))
        await serve(App(loaded=True), ProcessSettings(address), stop_requested=stop, on_ready=end)


async def test_metrics_are_exposed_while_the_process_runs(unused_tcp_port: int) -> None:
    registry = CollectorRegistry()
    Counter("things_total", "Things", registry=registry).inc(3)
    Histogram("sizes", "Sizes", registry=registry).observe(1)

    def fetch(host: str = "127.0.0.1", accept: str = "*/*") -> str:
        url = f"http://{host}:{unused_tcp_port}/metrics"
        request = urllib.request.Request(url, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            body: bytes = response.read()
        return body.decode()

    app = App(loaded=True)
    async with running(app, unused_tcp_port, registry=registry) as (_, _, ready):
        await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
        for accept in ("*/*", "application/openmetrics-text; version=1.0.0"):
            text = await asyncio.to_thread(fetch, accept=accept)
            assert "things_total 3.0" in text
            assert "_created" not in text
        # Every address that begins with 127 is this host's, but only one of them was listened at.
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(fetch, "127.0.0.2")
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(fetch)


async def state(address: str) -> debug_pb2.GetStateResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = debug_pb2_grpc.DebugServiceStub(channel)
        response: debug_pb2.GetStateResponse = await stub.GetState(
            debug_pb2.GetStateRequest(), wait_for_ready=True, timeout=PATIENCE_SECONDS
        )
        return response


@pytest.mark.parametrize("internal", [False, True])
async def test_only_its_operator_sees_a_process_from_inside(internal: bool) -> None:
    async with running(App(internal=internal)) as (address, control, _):
        # Also while it loads.
        seen = await state(control)
        assert (seen.role, seen.process_id) == ("tester", os.getpid())
        found = MessageToDict(seen.state)
        assert found["life"] == ["register"]
        assert found["parts"] == [{"name": "a", "count": 3}, {"name": "b"}]
        if internal:
            assert (await state(address)).role == "tester"
        else:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await state(address)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
