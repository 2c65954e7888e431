"""Bytes to the HTTP port that are nearly HTTP, with a key and a prompt that no log may have."""

import asyncio
import contextlib
import json
import random
from collections import Counter

from tools.fuzz.mutations import mutated_bytes

# Found in a log however bytes are written there: as text, in hexadecimal or as numbers.
KEY, PROMPT = "kestrel-key-7f3a", "plover-prompt-91c4"
AT_ONCE = 8
# Of one answer; who says half a request is not answered before the time for it is over.
_PATIENCE_SECONDS = 0.5
_PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "*", f"/{PROMPT}")
_HEADERS = (
    "Content-Length: x",
    "Content-Length: 5\r\nContent-Length: 6",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: nothing",
    "Content-Encoding: gzip",
    "Expect: 100-continue",
    "Expect: all",
    "Upgrade: websocket\r\nConnection: Upgrade",
    "Host: \0",
    "Host: evil.example",
    f"Origin: https://{PROMPT}.example",
    "no header",
    f"Long: {'x' * 9000}",
    f" folded: {KEY}",
    "Connection: close",
)


def request(draw: random.Random) -> bytes:
    """Return a request with both secrets, or a part of one, and with what is wrong with it."""
    body = json.dumps({"prompt": PROMPT, "max_tokens": 2, "user": KEY}).encode()
    headers = [
        "Host: localhost",
        "Content-Type: application/json",
        f"Authorization: Bearer {KEY}",
        f"Content-Length: {len(body)}",
        *draw.sample(_HEADERS, draw.choice((0, 0, 1, 2))),
    ]
    draw.shuffle(headers)
    method = draw.choice(("POST", "POST", "GET", "PRI", KEY))
    head = "\r\n".join((f"{method} {draw.choice(_PATHS)} HTTP/1.1", *headers, "", ""))
    data = head.encode() + body
    return mutated_bytes(draw, data) if draw.random() < 0.7 else data


async def fuzz(host: str, port: int, requests: int, seed: int) -> Counter[str]:
    """Send so many requests; return how many were answered with each status, or closed."""
    draw = random.Random(seed)
    endings: Counter[str] = Counter()
    remaining = iter(range(requests))

    async def caller() -> None:
        for _ in remaining:
            endings[await _ending(host, port, request(draw))] += 1

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    return endings


async def _ending(host: str, port: int, data: bytes) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    line = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        writer.write(data)
        line = await asyncio.wait_for(reader.readline(), _PATIENCE_SECONDS)
    writer.transport.abort()
    return line[9:12].decode() if line.startswith(b"HTTP/") else "none"


def leaks(log: bytes) -> list[str]:
    """Return the secrets that are in a log, in any of the ways in which bytes are written."""
    text = log.decode(errors="replace").lower()
    written = {
        secret: (secret, secret.encode().hex(), ", ".join(map(str, secret.encode())))
        for secret in (KEY, PROMPT)
    }
    return [secret for secret, ways in written.items() if any(way in text for way in ways)]
