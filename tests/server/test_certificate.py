"""TLS of the public port: certificates that are exchanged, and callers who need one."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tests.certificates import Authority, Pem
from tests.fakes.verifier import FakeVerifier
from tests.patience import PATIENCE_SECONDS
from tests.server.support import Running, serving, until

from blockdraft_protos.v1 import inference_pb2, inference_pb2_grpc
from blockdraft_runtime.credentials import read_certificate
from blockdraft_runtime.settings.server import TlsSettings

OLD, NEW, CALLERS = Authority("old"), Authority("new"), Authority("callers")


@pytest.fixture
def tls(tmp_path: Path) -> TlsSettings:
    OLD.issue().write(tmp_path)
    return TlsSettings(tmp_path / "cert.pem", tmp_path / "key.pem")


@contextlib.asynccontextmanager
async def over_tls(tls: TlsSettings) -> AsyncIterator[Running]:
    credentials = grpc.ssl_channel_credentials(OLD.certificate)
    async with serving(
        FakeVerifier(delay_seconds=0.05), tls=tls, channel_credentials=credentials
    ) as server:
        yield server


async def answered(server: Running, authority: Authority, caller: Pem | None = None) -> bool:
    """Whether a new connection that trusts an authority gets an answer."""
    credentials = grpc.ssl_channel_credentials(
        authority.certificate,
        caller.key if caller is not None else None,
        caller.certificate if caller is not None else None,
    )
    options = (
        ("grpc.ssl_target_name_override", "localhost"),
        ("grpc.use_local_subchannel_pool", 1),
    )
    async with grpc.aio.secure_channel(server.address, credentials, options=options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        try:
            await stub.GetModel(inference_pb2.GetModelRequest(), timeout=PATIENCE_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
        return True


async def until_answered(
    server: Running, authority: Authority, caller: Pem | None = None, *, wanted: bool = True
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await answered(server, authority, caller) != wanted:
            await asyncio.sleep(0.01)


async def test_new_connections_get_the_new_certificate_and_old_ones_go_on(
    tls: TlsSettings, tmp_path: Path
) -> None:
    async with over_tls(tls) as server:
        stream = aiter(server.stream(max_output_tokens=60))
        await anext(stream)
        assert await answered(server, OLD)
        assert not await answered(server, NEW)
        NEW.issue().write(tmp_path)
        await until_answered(server, NEW)
        assert not await answered(server, OLD)
        *_, last = [message async for message in stream]
        assert last.finish_reason


async def test_the_expiry_of_the_certificate_is_told(tls: TlsSettings, tmp_path: Path) -> None:
    async with over_tls(tls) as server:

        def days() -> float:
            expiry = server.metric("tls_certificate_expiry_timestamp_seconds")
            return (expiry - time.time()) / 86400

        assert days() == pytest.approx(2, abs=0.1)
        OLD.issue(days=90).write(tmp_path)
        await until(lambda: days() > 89)


async def test_half_an_exchange_changes_nothing(
    tls: TlsSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = NEW.issue()
    async with over_tls(tls) as server:
        tls.certificate.write_bytes(new.certificate)
        await until(lambda: "is not the key of the first certificate" in caplog.text)
        assert await answered(server, OLD)
        tls.key.write_bytes(new.key)
        await until_answered(server, NEW)
        # Neither does one that nobody would accept.
        NEW.issue(days=-1).write(tmp_path)
        await until(lambda: "has expired" in caplog.text)
        assert await answered(server, NEW)


async def test_callers_may_have_to_show_a_certificate(tls: TlsSettings, tmp_path: Path) -> None:
    authorities = tmp_path / "callers.pem"
    authorities.write_bytes(CALLERS.certificate)
    async with over_tls(replace(tls, client_authorities=authorities)) as server:
        caller, stranger = CALLERS.issue("caller"), NEW.issue("caller")
        assert await answered(server, OLD, caller)
        assert not await answered(server, OLD)
        assert not await answered(server, OLD, stranger)
        assert not await answered(server, OLD, CALLERS.issue("late", days=-1))
        # Authorities are exchanged too.
        authorities.write_bytes(NEW.certificate)
        await until_answered(server, OLD, stranger)
        assert not await answered(server, OLD, caller)


def test_what_cannot_be_used_is_said(tls: TlsSettings, tmp_path: Path) -> None:
    files = tls.certificate, tls.key, None
    assert read_certificate(*files).authorities is None
    for spoil, message in (
        (lambda: tls.key.write_bytes(b"no key"), "nable to load"),
        (lambda: OLD.issue(days=-1).write(tmp_path), "has expired on 20"),
        (lambda: tls.certificate.write_bytes(b""), "nable to load"),
        (tls.certificate.unlink, "No such file"),
    ):
        OLD.issue().write(tmp_path)
        spoil()
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            read_certificate(*files)
