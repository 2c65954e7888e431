"""How the tests ask over HTTP."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from tests.fakes.verifier import completion
from tests.server.support import Running

PROMPT = [1, 2]
TEXT = bytes(completion(PROMPT, 8)).decode()
HERE = "127.0.0.1:0"
JSON = {"Content-Type": "application/json"}
TOOL = {"type": "function", "function": {"name": "rain", "parameters": {"type": "object"}}}


@contextlib.asynccontextmanager
async def connection(
    server: Running,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection to say what no client would."""
    host, _, port = url(server, "").removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def url(server: Running, path: str, scheme: str = "http") -> str:
    assert server.app.http_server is not None
    return f"{scheme}://{server.app.http_server.address}{path}"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}


async def post(
    http: aiohttp.ClientSession, server: Running, path: str, fields: Any, **options: Any
) -> tuple[int, Any]:
    async with http.post(url(server, path), json=fields, **options) as response:
        return response.status, await response.json()


async def complete(http: aiohttp.ClientSession, server: Running, **fields: Any) -> tuple[int, Any]:
    return await post(http, server, "/v1/completions", body(**fields))


async def chat(http: aiohttp.ClientSession, server: Running, **fields: Any) -> tuple[int, Any]:
    messages = [{"role": "user", "content": "hi"}]
    asked = {"messages": messages, "max_tokens": 8, **fields}
    return await post(http, server, "/v1/chat/completions", asked)


async def events(
    http: aiohttp.ClientSession, server: Running, path: str, fields: Any
) -> list[dict[str, Any]]:
    async with http.post(url(server, path), json={**fields, "stream": True}) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
