"""`python -m tests.chaos.strangers`: what callers notice of connections by the thousand."""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import multiprocessing.synchronize
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.chaos.stack import Stack, running_stack

from blockdraft_client import AsyncClient, SamplingParams

CALLERS = 4
ROUNDS = 5
WARM_SECONDS = 5.0
# Nothing, parts of what TLS and HTTP/2 begin with, something else, and noise.
BEGINNINGS = (
    b"",
    b"\x16\x03\x01\x02\x00\x01",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    bytes(range(256)),
)
# Each stranger says a byte so often.
_DRIP_SECONDS = 2.0


def strangers(
    address: str,
    count: int,
    there: multiprocessing.synchronize.Event,
    leave: multiprocessing.synchronize.Event,
) -> None:
    """Hold so many connections, most of them silent, some dripping; replace those that end."""
    host, port = address.rsplit(":", 1)
    open_ones: dict[int, socket.socket] = {}
    while not leave.is_set():
        for number in range(count):
            if number not in open_ones:
                with contextlib.suppress(OSError):
                    open_ones[number] = socket.create_connection((host, int(port)), timeout=5)
                    open_ones[number].sendall(BEGINNINGS[number % len(BEGINNINGS)])
                    open_ones[number].setblocking(False)
        there.set()
        leave.wait(_DRIP_SECONDS)
        for number, one in list(open_ones.items()):
            try:
                one.send(b"\0" if number % 10 == 0 else b"")
                ended = one.recv(4096) == b""
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                open_ones.pop(number).close()


class Pauses:
    """Callers that ask for one answer after another, and the pauses between their messages."""

    def __init__(self, clients: list[AsyncClient]) -> None:
        """Ask for nothing yet."""
        self._clients = clients
        self._asked = 0

    async def measured(self, seconds: float) -> list[float]:
        """Return the pauses of so many seconds, the first message's wait included."""
        pauses: list[float] = []
        end = time.monotonic() + seconds

        async def caller(client: AsyncClient) -> None:
            while time.monotonic() < end:
                self._asked += 1
                sampling = SamplingParams(
                    max_output_tokens=60, temperature=1.0, seed=self._asked, ignore_eos=True
                )
                before = time.monotonic()
                async with client.stream(f"{self._asked}", sampling=sampling) as stream:
                    async for _ in stream:
                        now = time.monotonic()
                        pauses.append(now - before)
                        before = now

        await asyncio.gather(*map(caller, self._clients))
        return pauses


async def measure(connections: int, seconds: float) -> dict[str, Any]:
    """Measure pauses with and without strangers in turn."""
    async with running_stack() as stack:
        clients = [stack.client(address=stack.server) for _ in range(CALLERS)]
        try:
            pauses = Pauses(clients)
            await pauses.measured(WARM_SECONDS)
            rounds = [await _round(stack, pauses, connections, seconds) for _ in range(ROUNDS)]
        finally:
            for client in clients:
                await client.close()
    return {
        "connections": connections,
        "rounds": rounds,
        "p99_ratio_median": round(statistics.median(r["p99_ratio"] for r in rounds), 3),
        "p50_ratio_median": round(statistics.median(r["p50_ratio"] for r in rounds), 3),
    }


async def _round(stack: Stack, pauses: Pauses, count: int, seconds: float) -> dict[str, float]:
    alone = await pauses.measured(seconds)
    spawn = multiprocessing.get_context("spawn")
    there, leave = spawn.Event(), spawn.Event()
    process = spawn.Process(target=strangers, args=(stack.server, count, there, leave))
    process.start()
    await asyncio.to_thread(there.wait)
    beside = await pauses.measured(seconds)
    leave.set()
    await asyncio.to_thread(process.join)
    found: dict[str, float] = {}
    for share in (50, 99):
        before, after = (float(np.quantile(each, share / 100)) for each in (alone, beside))
        found |= {f"p{share}_alone_ms": round(1000 * before, 2)}
        found |= {f"p{share}_beside_ms": round(1000 * after, 2)}
        found |= {f"p{share}_ratio": round(after / before, 3)}
    return found


def main() -> int:
    """Run what the command line says, and show what it found."""
    parser = argparse.ArgumentParser("python -m tests.chaos.strangers", description=__doc__)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each half of a round")
    parser.add_argument("--output", type=Path, default=Path("bench-results/strangers.json"))
    args = parser.parse_args()
    found = asyncio.run(measure(args.connections, args.seconds))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
