"""What must not be told: texts and keys in logs and metrics, services in production."""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import generate_latest
from tests.fakes.verifier import FakeVerifier, running_verifier
from tests.patience import PATIENCE_SECONDS
from tests.server.openai.asking import HERE, url
from tests.server.support import (
    ByteTokenizer,
    bearer,
    running_server,
    serving,
    settings_for,
    text_request,
    whole,
)

from blockdraft_protos.v1 import inference_pb2

MARKER, KEY = "plover-marker", "key-that-nobody-may-see"
METADATA = bearer(KEY)


class FailingTokenizer(ByteTokenizer):
    def encode(self, text: str) -> list[int]:
        if "fail" in text:
            raise RuntimeError("a defect")
        return super().encode(text)


async def test_neither_texts_nor_keys_are_in_logs_or_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    # Replays, refusals, unknown failures: all that writes to the log.
    fake = FakeVerifier(break_after=[1, 2])
    fake.description.max_context_tokens = 512
    async with serving(fake, api_keys=[KEY, "other"], tokenizer=FailingTokenizer()) as server:
        generate, stream = server.stub.Generate, server.stub.StreamGenerate
        texts = text_request(MARKER, stop_sequences=[MARKER])
        await generate(whole(texts), metadata=METADATA)
        await generate(whole(texts), metadata=METADATA)
        refused = [
            text_request(MARKER, temperature=-1.0),
            text_request(f"{MARKER} fail"),
            text_request(MARKER * 1000),
            text_request(MARKER, stop_sequences=[MARKER] * 17),
            inference_pb2.StreamGenerateRequest(model=MARKER, prompt=texts.prompt),
        ]
        for request in refused:
            with pytest.raises(grpc.aio.AioRpcError):
                await generate(whole(request), metadata=METADATA)
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in stream(request, metadata=METADATA):
                    pass
        fake.break_code = grpc.StatusCode.DATA_LOSS
        fake.break_after = [1]
        with contextlib.suppress(grpc.aio.AioRpcError):
            await generate(whole(texts), metadata=METADATA)
        wrong = bearer(f"{KEY}-wrong")
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(whole(texts), metadata=wrong)
        await server.stub.Tokenize(
            inference_pb2.TokenizeRequest(prompt=texts.prompt), metadata=METADATA
        )
        metrics = generate_latest(server.registry).decode()
    assert "replaying request" in caplog.text
    assert "RuntimeError: a defect" in caplog.text
    assert 'tenant="unnamed"' in metrics
    for secret in (MARKER, KEY, str(list(MARKER.encode()))[1:-1]):
        assert secret not in caplog.text
        assert secret not in metrics


@pytest.mark.parametrize(
    "line", [b"no header", b"Content-Length: x", b"Transfer-Encoding: nothing", b"Host: \x00"]
)
async def test_keys_are_not_logged_with_what_is_no_http(
    line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(FakeVerifier(), openai=HERE) as server:
        host, _, port = url(server, "").removeprefix("http://").rpartition(":")
        for start in (b"POST /v1/completions HTTP/1.1", KEY.encode()):
            reader, writer = await asyncio.open_connection(host, int(port))
            key = b"Authorization: Bearer " + KEY.encode()
            writer.write(b"\r\n".join((start, key, line + KEY.encode(), b"", b"")))
            answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
            assert answer.startswith(b"HTTP/1.0 400") or answer.startswith(b"HTTP/1.1 400")
            writer.close()
    assert "Error handling request from 127.0.0.1" in caplog.text
    assert KEY not in caplog.text
    assert KEY.encode().hex() not in caplog.text


@pytest.mark.parametrize("production", [False, True])
async def test_production_tells_nobody_what_services_there_are(
    production: bool, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    async with running_verifier(FakeVerifier()) as address:
        settings = settings_for(
            address, production=production, tls_elsewhere=True, api_key_file=keys
        )
        async with running_server(settings) as server:
            # Its stubs know channels of the other kind only.
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(server.channel)  # type: ignore[arg-type]
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            call = stub.ServerReflectionInfo()
            if production:
                # Nothing is sent: a message under way when the call is refused hides the reason.
                assert await call.code() == grpc.StatusCode.UNIMPLEMENTED
            else:
                await call.write(request)
                assert (await call.read()).list_services_response.service
                call.cancel()
            response = await server.generate(metadata=METADATA)
            assert response.token_ids
