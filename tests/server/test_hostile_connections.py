"""Connections that are no calls, or calls nobody may make: others are answered meanwhile."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.certificates import Authority
from tests.fakes.verifier import FakeVerifier
from tests.patience import PATIENCE_SECONDS
from tests.server.support import (
    Running,
    bearer,
    serving,
    text_request,
    until,
    whole,
)

from blockdraft_protos.v1 import inference_pb2, inference_pb2_grpc
from blockdraft_runtime.settings.server import TlsSettings
from blockdraft_server import app

AUTHORITY = Authority("hostile")
CONNECTIONS = 300
METADATA = bearer("key")
# Nothing, parts of what TLS and HTTP/2 begin with, something else, and noise.
BEGINNINGS = (
    b"",
    b"\x16\x03\x01\x02\x00\x01",
    b"PRI * HTTP/2.0\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    bytes(range(256)),
)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give handshakes less time."""
    monkeypatch.setattr(app, "HANDSHAKE_MILLISECONDS", 1000)


@pytest.fixture(params=["plaintext", "tls"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    tls = credentials = None
    if request.param == "tls":
        AUTHORITY.issue().write(tmp_path)
        tls = TlsSettings(tmp_path / "cert.pem", tmp_path / "key.pem")
        credentials = grpc.ssl_channel_credentials(AUTHORITY.certificate)
    async with serving(
        FakeVerifier(), tls=tls, api_keys=["key"], channel_credentials=credentials
    ) as server:
        yield server


def strangers(server: Running) -> list[socket.socket]:
    """Open hundreds of connections that say something, or nothing, and stay."""
    connections = []
    for number in range(CONNECTIONS):
        stranger = socket.socket(socket.AF_UNIX)
        stranger.settimeout(PATIENCE_SECONDS)
        stranger.connect(server.address.removeprefix("unix:"))
        with contextlib.suppress(BrokenPipeError):
            stranger.sendall(BEGINNINGS[number % len(BEGINNINGS)])
        connections.append(stranger)
    return connections


async def answered(server: Running) -> None:
    """Check that a caller is."""
    request = whole(text_request(max_output_tokens=3))
    # A handshake of a busy machine may take longer than it may; then there is another.
    response = await server.stub.Generate(
        request, metadata=METADATA, timeout=PATIENCE_SECONDS, wait_for_ready=True
    )
    assert len(response.token_ids) == 3


async def test_hundreds_of_connections_that_say_nothing_sensible_hold_up_nobody(
    hurry: None, server: Running
) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 3 * CONNECTIONS
    await answered(server)

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = files()
    connections = await asyncio.to_thread(strangers, server)
    await answered(server)

    def ended(stranger: socket.socket) -> bool:
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
        return True

    # All are let go, those that said nothing after the time that a handshake may take. But who
    # has begun HTTP/2 properly may stay.
    proper = BEGINNINGS.index(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    tls = server.app.credentials() is not None
    for number, stranger in enumerate(connections):
        if tls or number % len(BEGINNINGS) != proper:
            assert await asyncio.to_thread(ended, stranger)
        stranger.close()
    await until(lambda: files() <= before + 8)
    await answered(server)


async def test_calls_without_a_key_by_the_hundred_reach_nothing(server: Running) -> None:
    wrong = bearer("wrong")
    request = whole(text_request())
    calls = [server.stub.Generate(request, metadata=wrong) for _ in range(CONNECTIONS)]
    await answered(server)
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    # They do not even count as requests.
    assert server.metric("requests_total", outcome="unauthenticated") == 0
    assert server.metric("requests_total", outcome="length") == 1


async def test_the_wrong_encryption_is_refused_and_others_are_answered(server: Running) -> None:
    tls = server.app.credentials() is not None
    stranger = (
        grpc.aio.insecure_channel(server.address)
        if tls
        else grpc.aio.secure_channel(server.address, grpc.ssl_channel_credentials())
    )
    async with stranger:
        stub = inference_pb2_grpc.InferenceServiceStub(stranger)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetModel(
                inference_pb2.GetModelRequest(), metadata=METADATA, timeout=PATIENCE_SECONDS
            )
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await answered(server)


async def test_metadata_beyond_all_bounds_is_refused(server: Running) -> None:
    long = (*METADATA, ("x-long", "x" * 200_000))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.generate(metadata=long, timeout=PATIENCE_SECONDS)
    assert caught.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL)
    await answered(server)


async def test_compressed_messages_are_refused_before_they_are_inflated(server: Running) -> None:
    """Of Health too, which needs no key: a small message could become gigabytes."""
    gzip = grpc.Compression.Gzip
    health: Any = health_pb2_grpc.HealthStub(server.channel)
    calls = (
        health.Check(health_pb2.HealthCheckRequest(service="x" * 100_000), compression=gzip),
        server.stub.Generate(whole(text_request("x" * 1000)), metadata=METADATA, compression=gzip),
    )
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert "gzip" in str(caught.value.details())


async def test_bytes_that_are_no_request_are_the_callers_error(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """Of Health too, which needs no key; the log is not the callers' to fill."""
    for method in ("Check", "Watch"):
        call: Any = server.channel.unary_stream(f"/grpc.health.v1.Health/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(call(b"\xff\xff")))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records
    health: Any = health_pb2_grpc.HealthStub(server.channel)
    watched = health.Watch(health_pb2.HealthCheckRequest())
    assert (await anext(aiter(watched))).status == health_pb2.HealthCheckResponse.SERVING
