"""smg before two servers: requests go to both, and a server that dies takes its streams only."""

import asyncio
import contextlib
import functools
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.e2e.test_fair_share import serving_verifier
from tests.models.tiny import write_hf_checkpoint
from tests.patience import PATIENCE_SECONDS, until
from tests.ports import free_ports
from tests.verifier.support import make_engine, tiny_decoder

from blockdraft_client import Client
from blockdraft_verifier.engine.loop import Engine

pytestmark = pytest.mark.slow
# So that a stream of LONG tokens goes on when a server is killed.
STEP_SECONDS = 0.03
LONG, SHORT = 70, 16


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    engine = make_engine(tiny_decoder())
    step = engine.step

    def slow() -> bool:
        time.sleep(STEP_SECONDS)
        return step()

    monkeypatch.setattr(engine, "step", slow)
    engine.start()
    yield engine
    engine.stop()


@contextlib.contextmanager
def process(log: Path, module: str, flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of ours, or smg, while the context lasts."""
    with log.open("wb") as sink:
        command = [sys.executable, "-m", module, *flags.split()]
        running = subprocess.Popen(command, stdout=sink, stderr=sink)
        try:
            yield running
        finally:
            running.kill()
            running.wait()
            print(log.read_text()[-3000:])


def until_ready(servers: tuple[str, ...]) -> None:
    for address in servers:
        with Client(address) as client:
            client.wait_ready(PATIENCE_SECONDS)


def until_known(http: str) -> None:
    """Wait until the gateway uses both servers."""

    def workers() -> int:
        try:
            with urllib.request.urlopen(f"http://{http}/readiness", timeout=5) as ready:
                return int(json.load(ready)["healthy_workers"])
        except OSError:
            return 0

    until(lambda: workers() == 2)


async def contents(stream: Any) -> AsyncIterator[str]:
    async for piece in stream:
        if piece.choices and piece.choices[0].text:
            yield piece.choices[0].text


async def complete(rest: AsyncIterator[str]) -> bool:
    """Return whether a stream comes to its end."""
    try:
        async for _ in rest:
            pass
    except openai.APIError:
        return False
    return True


async def test_a_server_that_dies_breaks_its_streams_only(engine: Engine, tmp_path: Path) -> None:
    write_hf_checkpoint(tiny_decoder(), tmp_path / "target")
    port = free_ports(4)
    first, second, http, _ = (f"127.0.0.1:{port + offset}" for offset in range(4))
    async with contextlib.AsyncExitStack() as stack:
        verifier = await stack.enter_async_context(serving_verifier(engine))

        def start(name: str, module: str, flags: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(process(tmp_path / f"{name}.log", module, flags))

        _, other = (
            start(
                f"server-{number}",
                "blockdraft",
                f"server --listen {address} --verifier {verifier} --target {tmp_path / 'target'}"
                " --model-name tiny",
            )
            for number, address in enumerate((first, second))
        )
        await asyncio.to_thread(until_ready, (first, second))
        workers = f"--worker-urls grpc://{first} grpc://{second} --policy round_robin"
        start("smg", "smg", f"launch --port {port + 2} {workers} --prometheus-port {port + 3}")
        await asyncio.to_thread(until_known, http)
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0)
        )
        ask = functools.partial(
            client.completions.create,
            model="tiny",
            temperature=0,
            extra_body={"ignore_eos": True},
        )

        async def begin(text: str) -> AsyncIterator[str]:
            """Return the rest of a stream that has begun."""
            rest = contents(await ask(prompt=text, max_tokens=LONG, stream=True))
            await anext(rest)
            return rest

        begun = await asyncio.gather(*(begin(f"{number} ducks") for number in range(4)))
        other.kill()
        assert set(await asyncio.gather(*map(complete, begun))) == {True, False}
        # The gateway does not know yet that the server is dead: it tries again.
        texts = [f"{number} geese" for number in range(4)]
        found = await asyncio.gather(*(ask(prompt=text, max_tokens=SHORT) for text in texts))

        def plain(text: str) -> str:
            with Client(first) as ours:
                return ours.generate(text, max_tokens=SHORT, ignore_eos=True).text

        for text, answer in zip(texts, found, strict=True):
            expected = await asyncio.to_thread(plain, text)
            assert answer.choices[0].text == expected.rstrip("\ufffd")
