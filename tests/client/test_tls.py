"""Encrypted connections."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.client.api import Api
from tests.fakes.inference import RunningFake, running_fake
from tests.patience import PATIENCE_SECONDS

from blockdraft_client import Client, ConnectionFailedError, TLSConfig


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed certificate for "blockdraft.test" and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    files = (folder / "cert.pem", folder / "key.pem")
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=blockdraft.test"]
    command += ["-addext", "subjectAltName=DNS:blockdraft.test"]
    command += ["-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    return files


@pytest.fixture
def strict_fake(certificate: tuple[Path, Path]) -> Iterator[RunningFake]:
    """Serve encrypted, and only clients with the certificate."""
    cert, key = (path.read_bytes() for path in certificate)
    credentials = grpc.ssl_server_credentials([(key, cert)], cert, require_client_auth=True)
    with running_fake(credentials) as running:
        yield running


async def test_both_sides_prove_themselves_and_the_key_arrives(
    kind: str, strict_fake: RunningFake, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    tls = TLSConfig.from_files(cert, cert, key, server_name="blockdraft.test")
    api = Api(kind, strict_fake.target, tls=tls, api_key="k")
    assert (await api.call("model")).name == "fake"
    assert strict_fake.service.metadata[0]["authorization"] == "Bearer k"
    await api.close()


@pytest.mark.parametrize("certified", [True, False])
def test_a_refused_handshake_is_a_failed_connection(
    strict_fake: RunningFake, certificate: tuple[Path, Path], certified: bool
) -> None:
    # Once without the client's certificate, once without trust in the server's.
    cert, key = certificate
    if certified:
        tls = TLSConfig.from_files(None, cert, key, "blockdraft.test")
    else:
        tls = TLSConfig.from_files(cert, server_name="blockdraft.test")
    client = Client(strict_fake.target, tls=tls)
    with client, pytest.raises(ConnectionFailedError, match="agree on TLS"):
        client.model(timeout=PATIENCE_SECONDS)


def test_plaintext_to_an_encrypted_server_names_tls(strict_fake: RunningFake) -> None:
    client = Client(strict_fake.target)
    with client, pytest.raises(ConnectionFailedError, match="agree on TLS"):
        client.model(timeout=PATIENCE_SECONDS)


def test_a_certificate_named_by_a_variable_turns_encryption_on(
    strict_fake: RunningFake, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CA_CERT", str(certificate[0]))
    client = Client(strict_fake.target)
    # Encrypted and trusted, but not for this name.
    with client, pytest.raises(ConnectionFailedError, match="agree on TLS"):
        client.model(timeout=PATIENCE_SECONDS)
