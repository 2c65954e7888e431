"""Mutual TLS between processes, over real sockets."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from tests.certificates import Authority, write_peer
from tests.fakes.verifier import unix_address
from tests.patience import PATIENCE_SECONDS

from blockdraft_runtime.credentials import OtherProcess, UnusableFilesError, peer_server_credentials
from blockdraft_runtime.settings.process import PeerTlsSettings

OURS, OTHERS = Authority("ours"), Authority("others")


@pytest.fixture
def tls(tmp_path: Path) -> PeerTlsSettings:
    return write_peer(tmp_path / "ours", OURS)


@pytest.fixture
async def address(tls: PeerTlsSettings) -> AsyncIterator[str]:
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
    credentials = peer_server_credentials("localhost:0", tls)
    assert credentials is not None
    port = server.add_secure_port("localhost:0", credentials)
    await server.start()
    yield f"localhost:{port}"
    await server.stop(None)


async def answered(channel: grpc.aio.Channel) -> bool:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    try:
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_SECONDS)
    except grpc.aio.AioRpcError as error:
        return error.code() is not grpc.StatusCode.UNAVAILABLE
    return True


async def answers(channel: grpc.aio.Channel) -> bool:
    async with channel:
        return await answered(channel)


async def test_processes_of_one_authority_know_each_other(
    address: str, tls: PeerTlsSettings
) -> None:
    assert await answers(OtherProcess(address, tls).aio_channel())
    with OtherProcess(address, tls).channel() as channel:
        ready = grpc.channel_ready_future(channel)
        ready.result(PATIENCE_SECONDS)


async def test_no_other_process_gets_through(address: str, tmp_path: Path) -> None:
    stranger = write_peer(tmp_path / "stranger", OTHERS, OURS)
    deceived = write_peer(tmp_path / "deceived", OURS, OTHERS)
    for tls in (None, stranger, deceived):
        assert not await answers(OtherProcess(address, tls).aio_channel())
    unnamed = grpc.ssl_channel_credentials(OURS.certificate)
    assert not await answers(grpc.aio.secure_channel(address, unnamed))


async def test_new_connections_show_and_demand_what_the_files_say_now(
    address: str, tls: PeerTlsSettings, tmp_path: Path
) -> None:
    other = OtherProcess(address, tls)
    connected = other.aio_channel()
    assert await answered(connected)
    assert not other.renewed()
    write_peer(tls.certificate.parent, OTHERS)
    assert other.renewed()
    assert await answers(other.aio_channel())
    old = write_peer(tmp_path / "old", OURS)
    assert not await answers(OtherProcess(address, old).aio_channel())
    # A connection that stands stays.
    assert await answers(connected)


async def test_unix_sockets_stay_as_they_are(tls: PeerTlsSettings) -> None:
    with unix_address() as address:
        assert peer_server_credentials(address, tls) is None
        server = grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
        server.add_insecure_port(address)
        await server.start()
        assert await answers(OtherProcess(address, tls).aio_channel())
        await server.stop(None)


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    missing = PeerTlsSettings(*[tmp_path / "nowhere"] * 3)
    with pytest.raises(UnusableFilesError, match="nowhere"):
        peer_server_credentials("localhost:1", missing)
    with pytest.raises(UnusableFilesError, match="nowhere"):
        OtherProcess("localhost:1", missing)
