"""Callers that do not read what they asked for lose their place at the deadline."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.patience import PATIENCE_SECONDS
from tests.server.openai.asking import HERE, url
from tests.server.support import ByteTokenizer, Running, serving, until

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_runtime.settings.server import LimitsSettings

STEPS, STEP_TOKENS, SECONDS = 30, 1000, 1.0
TOKENS = STEPS * STEP_TOKENS
ASKED = {"messages": [{"role": "user", "content": "x"}], "max_tokens": TOKENS, "stream": True}


class Talkative(FakeVerifier):
    """Says more at once than all buffers on the way hold."""

    def _messages(self, request: verifier_pb2.SequenceRequest) -> list[verifier_pb2.SequenceTokens]:
        step = verifier_pb2.SequenceTokens(token_ids=[120] * STEP_TOKENS, step_sizes=[STEP_TOKENS])
        return [step] * STEPS


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(ByteTokenizer, "token_bytes", lambda self, token: b"x" * 1000)
    verifier = Talkative()
    verifier.description.max_context_tokens = 2 * TOKENS
    limits = LimitsSettings(default_timeout_seconds=SECONDS)
    async with serving(verifier, openai=HERE, limits=limits) as running:
        yield running


async def until_freed(server: Running, count: int = 1) -> None:
    def admitted() -> object:
        return server.app.inspect()["admitted"]

    await until(lambda: admitted() == count)
    await until(lambda: admitted() == 0)


@pytest.mark.parametrize("timeout", [None, SECONDS])
async def test_who_does_not_read_loses_its_place_over_grpc(
    server: Running, timeout: float | None
) -> None:
    call = server.stream(max_output_tokens=TOKENS, timeout=timeout)
    await until_freed(server)
    with pytest.raises(grpc.aio.AioRpcError):
        async for _ in call:
            pass


@pytest.mark.parametrize("count", [1, 2])
async def test_who_does_not_read_loses_its_place_over_http(server: Running, count: int) -> None:
    data = json.dumps({**ASKED, "n": count}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
    host, _, port = url(server, "").removeprefix("http://").rpartition(":")
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(client, (host, int(port)))
        await loop.sock_sendall(client, head + data)
        await until_freed(server, count)
        # The connection ends too.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await loop.sock_recv(client, 1 << 20):
                pass
