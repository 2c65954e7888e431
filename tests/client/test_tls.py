"""Encrypted connections."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.certificates import Authority
from tests.client.api import Api
from tests.fakes.inference import RunningFake, running_fake
from tests.patience import PATIENCE_SECONDS

from blockdraft_client import Client, ConnectionFailedError, TLSConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where an authority and a certificate of it for "blockdraft.test" lie."""
    authority = Authority("authority")
    authority.issue("blockdraft.test").write(tmp_path)
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    return tmp_path


@pytest.fixture
def strict_fake(folder: Path) -> Iterator[RunningFake]:
    """Serve encrypted, and only clients with a certificate of the authority."""
    key, chain, ca = ((folder / f"{name}.pem").read_bytes() for name in ("key", "cert", "ca"))
    with running_fake(grpc.ssl_server_credentials([(key, chain)], ca, True)) as running:
        yield running


async def test_both_sides_prove_themselves_and_the_key_arrives(
    kind: str, strict_fake: RunningFake, folder: Path
) -> None:
    files = (folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    tls = TLSConfig.from_files(*files, server_name="blockdraft.test")
    async with Api(kind, strict_fake.target, tls=tls, api_key="k") as api:
        assert (await api.call("model")).name == "fake"
        assert strict_fake.service.metadata[0]["authorization"] == "Bearer k"


@pytest.mark.parametrize("lacking", ["trust", "certificate", "encryption", "name"])
def test_a_refused_handshake_is_a_failed_connection(
    strict_fake: RunningFake, folder: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    ca, own = folder / "ca.pem", (folder / "cert.pem", folder / "key.pem")
    tls: TLSConfig | None = None
    if lacking == "trust":
        tls = TLSConfig.from_files(None, *own, "blockdraft.test")
    elif lacking == "certificate":
        tls = TLSConfig.from_files(ca, server_name="blockdraft.test")
    elif lacking == "name":
        # The variable turns encryption on, but the certificate is for another name.
        monkeypatch.setenv("BLOCKDRAFT_CA_CERT", str(ca))
    client = Client(strict_fake.target, tls=tls)
    with client, pytest.raises(ConnectionFailedError, match="agree on TLS"):
        client.model(timeout=PATIENCE_SECONDS)
