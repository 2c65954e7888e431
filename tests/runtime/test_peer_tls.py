"""Mutual TLS between processes, over real sockets."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from tests.certificates import Authority
from tests.fakes.verifier import unix_address
from tests.patience import PATIENCE_SECONDS

from blockdraft_runtime.peer_tls import aio_peer_channel, peer_channel, peer_server_credentials
from blockdraft_runtime.settings.peer_tls import PeerTlsSettings

OURS, OTHERS = Authority("ours"), Authority("others")


def peer(folder: Path, name: str, issuer: Authority, trusted: Authority) -> PeerTlsSettings:
    """Return the settings of a process whose certificate one authority signed."""
    folder /= name
    folder.mkdir()
    issuer.issue().write(folder)
    (folder / "ca.pem").write_bytes(trusted.certificate)
    return PeerTlsSettings(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")


@pytest.fixture
def tls(tmp_path: Path) -> PeerTlsSettings:
    return peer(tmp_path, "ours", OURS, OURS)


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


async def answers(channel: grpc.aio.Channel) -> bool:
    async with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            await stub.Check(  # type: ignore[attr-defined]  # its stubs lack it
                health_pb2.HealthCheckRequest(), timeout=PATIENCE_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
        return True


async def test_processes_of_one_authority_know_each_other(
    address: str, tls: PeerTlsSettings
) -> None:
    assert await answers(aio_peer_channel(address, tls))
    with peer_channel(address, tls) as channel:
        ready = grpc.channel_ready_future(channel)
        ready.result(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "caller",
    [
        lambda folder: None,
        lambda folder: peer(folder, "stranger", OTHERS, OURS),
        lambda folder: peer(folder, "deceived", OURS, OTHERS),
    ],
    ids=["plaintext", "signed by others", "trusts others"],
)
async def test_nobody_else_gets_through(
    address: str, tmp_path: Path, caller: Callable[[Path], PeerTlsSettings | None]
) -> None:
    assert not await answers(aio_peer_channel(address, caller(tmp_path)))


async def test_a_caller_without_a_certificate_is_refused(address: str) -> None:
    credentials = grpc.ssl_channel_credentials(OURS.certificate)
    assert not await answers(grpc.aio.secure_channel(address, credentials))


async def test_unix_sockets_stay_as_they_are(tls: PeerTlsSettings) -> None:
    with unix_address() as address:
        assert peer_server_credentials(address, tls) is None
        server = grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
        server.add_insecure_port(address)
        await server.start()
        assert await answers(aio_peer_channel(address, tls))
        await server.stop(None)


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    missing = PeerTlsSettings(*[tmp_path / "nowhere"] * 3)
    with pytest.raises(OSError, match="nowhere"):
        peer_server_credentials("localhost:1", missing)
    with pytest.raises(OSError, match="nowhere"):
        peer_channel("localhost:1", missing)
