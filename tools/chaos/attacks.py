"""`python -m tools.chaos.attacks`: hostile callers beside an ordinary one, before a real service.

Starts `blockdraft serve --openai` with the default target, or takes the one at `--running HTTP
GRPC`. Each attack comes from a process of its own. Meanwhile one caller reads a stream and another
asks for /health; their longest pauses, and the most memory of the server, stand beside those of as
long a time right before it.
"""

import asyncio
import contextlib
import json
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from typing import Any

import aiohttp
import psutil
from tests.e2e.openai_service import answers
from tests.patience import until
from tests.ports import free_ports
from tools.chaos.hostile import ATTACKS, attack
from tools.chaos.report import command_line, tell

ALLOWED_PAUSE_SECONDS = 0.5
# As docs/security.md says, with some room.
MOST_GROWTH_MIB = 720
READY_SECONDS = 1200.0
POLL_SECONDS = 0.05
STREAM = {"prompt": "The ducks", "max_tokens": 900, "ignore_eos": True, "stream": True}


class Watch:
    """What ordinary callers notice for a time, in seconds, and what the server takes.

    Attributes:
        pauses: The longest one between two pieces of a stream, until a stream began, and until
            /health answered.
        mib: The most memory of the server, and of verifier and compilers of grammars together.
    """

    def __init__(self, http: str, server: psutil.Process, verifier: psutil.Process) -> None:
        """Watch a service at its address, and its processes."""
        self._http, self._server, self._verifier = http, server, verifier
        self.pauses = {"stream": 0.0, "first": 0.0, "health": 0.0}
        self.mib = {"server": 0, "verifier": 0}

    async def during(self, hostile: Awaitable[object]) -> dict[str, Any]:
        """Watch until something is over."""
        tasks = [asyncio.ensure_future(each()) for each in (self._read, self._poll, self._weigh)]
        await hostile
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                raise RuntimeError("an ordinary caller was not served") from outcome
        return {**{k: round(v, 3) for k, v in self.pauses.items()}, "mib": self.mib}

    @contextlib.contextmanager
    def _pause(self, kind: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.pauses[kind] = max(self.pauses[kind], time.monotonic() - began)

    async def _read(self) -> None:
        while True:
            async with aiohttp.ClientSession(raise_for_status=True) as session:
                with self._pause("first"):
                    url = f"http://{self._http}/v1/completions"
                    response = await session.post(url, json=STREAM)
                    data = await response.content.readany()
                async with response:
                    while data:
                        with self._pause("stream"):
                            data = await response.content.readany()

    async def _poll(self) -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            while True:
                with self._pause("health"):
                    await (await session.get(f"http://{self._http}/health")).read()
                await asyncio.sleep(POLL_SECONDS)

    async def _weigh(self) -> None:
        while True:
            compilers = self._verifier.children(recursive=True)
            for name, processes in (
                ("server", [self._server]),
                ("verifier", [self._verifier, *compilers]),
            ):
                with contextlib.suppress(psutil.NoSuchProcess):
                    taken = sum(process.memory_info().rss for process in processes)
                    self.mib[name] = max(self.mib[name], taken >> 20)
            await asyncio.sleep(POLL_SECONDS)


async def measure(http: str, address: str, names: list[str], seconds: float) -> dict[str, Any]:
    """Return what each attack does."""
    [server] = [one for one in psutil.process_iter(["cmdline"]) if is_server(one, http)]
    parent = server.parent()
    assert parent is not None
    [verifier] = [one for one in parent.children() if "blockdraft_verifier" in one.cmdline()]
    found: dict[str, Any] = {}
    for name in names:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=attack, args=(name, http, address, seconds, there)
        )
        process.start()
        await asyncio.to_thread(here.recv)
        calm = await Watch(http, server, verifier).during(asyncio.sleep(seconds))
        here.send("go")
        over = asyncio.to_thread(process.join, 2 * seconds + 10)
        attacked = await Watch(http, server, verifier).during(over)
        process.kill()
        pauses = [attacked[kind] - calm[kind] for kind in ("stream", "health")]
        grown = attacked["mib"]["server"] - calm["mib"]["server"]
        found[name] = {
            "good": max(pauses) <= ALLOWED_PAUSE_SECONDS and grown <= MOST_GROWTH_MIB,
            "calm": calm,
            "attacked": attacked,
            "answers": here.recv() if here.poll() else {},
        }
        print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
    return found


def is_server(process: psutil.Process, http: str) -> bool:
    """Whether a process is the server at an address."""
    return {"blockdraft_server", f"--openai={http}"} <= set(process.info["cmdline"] or ())


@contextlib.contextmanager
def running_service() -> Iterator[tuple[str, str]]:
    """Run the service with the default target, and give its addresses."""
    port = free_ports(2)
    http, address = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    command = [sys.executable, "-m", "blockdraft", "serve", "--openai", http]
    process = subprocess.Popen([*command, "--listen", address])
    try:
        until(lambda: answers(f"http://{http}/health"), READY_SECONDS)
        yield http, address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60.0)


def main() -> int:
    """Run what the command line says; 1 if ordinary callers were held up, or memory was not."""
    parser = command_line("chaos.attacks", __doc__)
    parser.add_argument("--running", nargs=2, metavar=("HTTP", "GRPC"))
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=ATTACKS)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each attack")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        http, address = args.running or stack.enter_context(running_service())
        found = asyncio.run(measure(http, address, args.only, args.seconds))
    tell(found, args.output)
    return int(not all(one["good"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
