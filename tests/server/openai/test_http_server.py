"""OpenAI's API over HTTP: keys, certificate, queue, streams that end early."""

import asyncio
import json
import ssl
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.certificates import Authority
from tests.fakes.verifier import FakeVerifier, running_verifier
from tests.patience import PATIENCE_SECONDS
from tests.server.openai.asking import (
    HERE,
    TEXT,
    body,
    complete,
    connection,
    post,
    url,
)
from tests.server.support import (
    Running,
    running_server,
    serving,
    settings_for,
    text_request,
    until,
)

from blockdraft_runtime.settings.server import LimitsSettings, TlsSettings
from blockdraft_server import app
from blockdraft_server.keys import digest_of
from blockdraft_server.prompts import longest_token_bytes


async def test_models(http: aiohttp.ClientSession, server: Running) -> None:
    async with http.get(url(server, "/v1/models")) as response:
        [model] = (await response.json())["data"]
    assert (model["id"], model["max_model_len"]) == ("smollm2-135m", 64)
    async with http.get(url(server, "/v1/models/smollm2-135m")) as response:
        assert (await response.json()) == model
    async with http.get(url(server, "/v1/models/other")) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"
    status, found = await complete(http, server, model="other")
    assert (status, found["error"]["param"]) == (404, "model")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there_is_told_as_other_errors(
    http: aiohttp.ClientSession, server: Running, method: str, path: str, status: int, code: str
) -> None:
    async with http.request(method, url(server, path)) as response:
        error = (await response.json())["error"]
        assert response.status == status
        assert (response.headers.get("Allow") == "POST") == (status == 405)
    assert ("/v1/chat/completions, /v1/completions" in error["message"]) == (status == 404)
    assert (error["type"], error["code"], path in error["message"]) == (
        "invalid_request_error",
        code,
        True,
    )


async def test_a_full_queue_is_429_with_a_time(
    http: aiohttp.ClientSession, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 1
    limits = LimitsSettings(max_waiting=0)
    async with serving(verifier, openai=HERE, limits=limits) as server:
        held = [server.stream(max_output_tokens=8) for _ in range(4)]
        for call in held:
            await anext(aiter(call))
        async with http.post(url(server, "/v1/completions"), json=body()) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
            error = (await response.json())["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        for call in held:
            call.cancel()
        verifier.go_on.set()


async def test_keys_are_those_of_the_server(
    http: aiohttp.ClientSession, verifier: FakeVerifier
) -> None:
    keys = [f"alice sha256:{digest_of('secret').hex()} max-requests=1"]
    async with serving(verifier, openai=HERE, api_keys=keys) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            options = {"headers": headers}
            status, found = await post(http, server, "/v1/completions", body(), **options)
            assert (status, found["error"]["type"]) == (401, "authentication_error")
            async with http.get(url(server, "/v1/models"), headers=headers) as response:
                assert response.status == 401
        right = {"Authorization": "Bearer secret"}
        status, found = await post(http, server, "/v1/completions", body(), headers=right)
        assert (status, found["choices"][0]["text"]) == (200, TEXT)
        # The tenant's limits hold: two at once are one too many.
        status, found = await post(http, server, "/v1/completions", body(n=2), headers=right)
        assert (status, found["error"]["code"]) == (429, "tenant_limit")
        async with http.get(url(server, "/health")) as response:
            assert response.status == 200


async def test_a_key_that_is_no_text_is_not_valid(verifier: FakeVerifier) -> None:
    async with serving(verifier, openai=HERE, api_keys=["key"]) as server:
        async with connection(server) as (reader, writer):
            writer.write(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n")
            writer.write(b"Authorization: Bearer \xff\r\n\r\n")
            answer = await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)
        assert answer.startswith(b"HTTP/1.1 401")


async def test_health_is_told_once_requests_are_taken(
    http: aiohttp.ClientSession, verifier: FakeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = threading.Event()

    def load(tokenizer: Any) -> int:
        assert loaded.wait(PATIENCE_SECONDS)
        return longest_token_bytes(tokenizer)

    monkeypatch.setattr(app, "longest_token_bytes", load)
    async with running_verifier(verifier) as address:
        settings = settings_for(address, openai=HERE)
        async with running_server(settings, wait=False) as server:
            await until(lambda: not url(server, "").endswith(":0"))
            try:
                # Time enough to find the verifier.
                for _ in range(20):
                    async with http.get(url(server, "/health")) as response:
                        assert response.status == 503
                    await asyncio.sleep(0.02)
            finally:
                loaded.set()
            await server.until_healthy(True)
            async with http.get(url(server, "/health")) as response:
                assert response.status == 200
            status, found = await post(http, server, "/v1/completions", body())
            assert (status, found["choices"][0]["text"]) == (200, TEXT)


async def test_the_certificate_is_that_of_the_server(
    http: aiohttp.ClientSession, verifier: FakeVerifier, tmp_path: Path
) -> None:
    authority = Authority("ours")
    authority.issue("localhost").write(tmp_path)
    tls = TlsSettings(tmp_path / "cert.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    async with serving(verifier, openai="localhost:0", tls=tls) as server:
        address = url(server, "/v1/completions", "https")
        async with http.post(address, json=body(), ssl=trusting) as response:
            assert (await response.json())["choices"][0]["text"] == TEXT
        with pytest.raises(aiohttp.ClientError):
            await http.post(url(server, "/v1/completions"), json=body())


async def test_a_client_that_goes_away_frees_what_it_holds(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 1
    async with http.post(url(server, "/v1/completions"), json=body(stream=True)) as response:
        await response.content.readline()
        response.close()
    await until(lambda: verifier.cancelled == 1)
    assert server.app.inspect()["admitted"] == 0


async def test_an_error_in_a_stream_is_its_last_event(
    http: aiohttp.ClientSession, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 1
    limits = LimitsSettings(default_timeout_seconds=0.5)
    async with (
        serving(verifier, openai=HERE, limits=limits) as server,
        http.post(url(server, "/v1/completions"), json=body(stream=True)) as response,
    ):
        assert response.status == 200
        lines = (await response.text()).strip().split("\n\n")
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "deadline_exceeded")


async def test_streams_go_on_while_the_server_drains(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 1
    async with http.post(url(server, "/v1/completions"), json=body(stream=True)) as response:
        await response.content.readline()
        server.stop_requested.set()
        await until(lambda: server.app._closing is not None)
        verifier.go_on.set()
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_a_call_that_is_cancelled_at_any_moment_ends(
    server: Running, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 0

    async def read() -> None:
        async for _ in server.app._service.messages(text_request(), (), None):
            pass

    for ticks in range(20):
        call = asyncio.ensure_future(read())
        for _ in range(ticks):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call], timeout=1.0)
        assert call.cancelled(), ticks
