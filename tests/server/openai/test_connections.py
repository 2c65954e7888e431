"""Connections that dawdle, are too many or come from web pages; what is no HTTP."""

import asyncio
import contextlib
import json
import re
from typing import Any

import aiohttp
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.patience import PATIENCE_SECONDS
from tests.server.openai.asking import HERE, body, complete, connection, url
from tests.server.support import Running, serving, until

from blockdraft_server.openai import connections, http_server

LARGE = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LARGE += b"Content-Length: 1000000\r\n\r\n{"


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give callers less time."""
    for module in (connections, http_server):
        monkeypatch.setattr(module, "SECONDS", 0.5)


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Return the status and the error of an answer."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"Content-Length: (\d+)", head)
        assert length is not None
        content = await reader.readexactly(int(length[1]))
    return int(head.split()[1]), json.loads(content)["error"]


@pytest.mark.parametrize("headers", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: local"])
async def test_who_says_nothing_sensible_is_let_go(
    hurry: None, http: aiohttp.ClientSession, server: Running, headers: bytes
) -> None:
    async with connection(server) as (reader, writer):
        writer.write(headers)
        assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
    # Who asked once may stay.
    assert (await complete(http, server))[0] == 200
    await asyncio.sleep(1.0)
    [own] = server.app.http_server._runner.server.connections  # type: ignore[union-attr]
    assert (await complete(http, server))[0] == 200
    assert server.app.http_server._runner.server.connections == [own]  # type: ignore[union-attr]


async def test_a_body_has_to_come_in_time(hurry: None, server: Running) -> None:
    async with connection(server) as (reader, writer):
        writer.write(LARGE)
        status, error = await answer(reader)
    assert (status, error["code"]) == (408, "request_timeout")


async def test_large_bodies_that_dawdle_leave_room_for_others(
    http: aiohttp.ClientSession, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(http_server._LARGE_BODIES + 1):
            _, writer = await stack.enter_async_context(connection(server))
            writer.write(LARGE)
        assert (await complete(http, server))[0] == 200
        assert server.app.http_server is not None
        assert server.app.http_server._large_bodies.locked()


async def test_connections_are_bounded_in_number(
    http: aiohttp.ClientSession, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    async with connection(server), connection(server), connection(server) as (reader, _):
        assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
    assert server.app.http_server is not None
    runner = server.app.http_server._runner
    await until(lambda: runner.server is not None and not runner.server.connections)
    assert (await complete(http, server))[0] == 200


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"no HTTP\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header\r\n\r\n", 400, "bad_request"),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: all\r\n"
            b"Content-Length: 9\r\nConnection: close\r\n\r\n",
            417,
            "expectation_failed",
        ),
        (LARGE.replace(b"Content-Length: 1000000", b"Transfer-Encoding: chunked"), 400, None),
    ],
    ids=["no HTTP", "header", "expectation", "chunk"],
)
async def test_what_is_no_http_is_told_as_other_errors(
    server: Running, data: bytes, status: int, code: str | None
) -> None:
    async with connection(server) as (reader, writer):
        writer.write(data)
        if code is None:
            # A chunk without a length, once the body is read.
            await asyncio.sleep(0.1)
            writer.write(b"\r\n")
        found, error = await answer(reader)
    assert (found, error["type"]) == (status, "invalid_request_error")
    assert code is None or error["code"] == code


async def test_a_body_that_is_asked_for_comes(server: Running) -> None:
    data = json.dumps(body()).encode()
    async with connection(server) as (reader, writer):
        head = LARGE.partition(b"Content-Length")[0] + b"Expect: 100-continue\r\n"
        writer.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data))
        line = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
        assert line == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(data)
        assert b"200 OK" in await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)


FOREIGN = (
    {"Host": "evil.example"},
    {"Origin": "https://evil.example"},
    {"Origin": "http://203.0.113.5"},
    {"Origin": "null"},
)
OWN = (
    {"Host": "localhost:1"},
    {"Host": "[::1]:1"},
    {"Host": "192.0.2.1"},
    {"Host": "llm.lan"},
    {"Host": "llm.lan", "Origin": "https://llm.lan"},
    {"Origin": "http://localhost:3000"},
)


@pytest.mark.parametrize("headers", [*FOREIGN, *OWN], ids=str)
@pytest.mark.parametrize("keys", [(), ("key",)], ids=["open", "keys"])
async def test_web_pages_reach_nothing_without_a_key(
    http: aiohttp.ClientSession, verifier: FakeVerifier, headers: dict[str, str], keys: Any
) -> None:
    key = {"Authorization": "Bearer key"} if keys else {}
    options = {"openai": HERE, "allowed_hosts": ("llm.lan",), "api_keys": keys}
    async with serving(verifier, **options) as server:
        address = url(server, "/v1/completions")
        async with http.post(address, json=body(), headers={**key, **headers}) as response:
            assert response.status == (403 if headers in FOREIGN and not keys else 200)
        # Unless there is no name to keep out.
        server.app.http_server._hosts |= {"*"}  # type: ignore[union-attr]
        async with http.post(address, json=body(), headers={**key, **headers}) as response:
            assert response.status == 200
        async with http.post(
            address, data=json.dumps(body()), headers={**key, "Content-Type": "text/plain"}
        ) as response:
            assert response.status == 415
            assert "Content-Type" in (await response.json())["error"]["message"]
