"""Other people's clients of OpenAI's API get the tokens of plain decoding, also while it dies."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import openai
import pytest
from tests.e2e.openai_service import (
    PLAIN,
    READY_SECONDS,
    ROOT,
    TEXT,
    Service,
    answers,
    running_service,
)
from tests.patience import PATIENCE_SECONDS, until

from blockdraft_client import AsyncClient, ChatMessage, Client
from blockdraft_protos.vllm import vllm_engine_pb2, vllm_engine_pb2_grpc

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# `make test-slow` installs them apart from the project.
INSTALLED = ROOT / ".venv" / "clients"
PROMPT = [ChatMessage("user", TEXT)]
STREAMS, TOKENS = 32, 96


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("clients")) as running:
        yield running


@pytest.fixture(scope="module")
def plain(service: Service) -> Iterator[Any]:
    """Complete `PROMPT` plainly, by our own client."""
    with Client(service.grpc, timeout=READY_SECONDS) as client:
        yield lambda tokens=24, **options: client.generate(
            PROMPT, max_tokens=tokens, speculation=PLAIN, **options
        )


def run(*command: str | Path) -> str:
    environment = {**os.environ, "NODE_PATH": str(INSTALLED / "node_modules")}
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=READY_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("program", "script"), [("node", "ask.cjs"), ("python", "ask.py")])
def test_a_client_hears_what_plain_decoding_says(
    service: Service, plain: Any, program: str, script: str
) -> None:
    text = plain().text
    stop = text[5:8]
    command = (INSTALLED / "bin" / program, HERE / script, f"{service.http}/v1", TEXT, stop)
    found = json.loads(run(*command))
    log_probs = [each.chosen.log_prob for each in plain(8, logprobs=2).log_probs]
    assert found.pop("log_probs") == pytest.approx(log_probs, abs=1e-4)
    assert found == {
        "whole": text,
        "streamed": text,
        "sampled": plain(temperature=1, seed=7).text,
        "stopped": text[: text.index(stop)],
        "together": [text] * 8,
        "several": [plain(temperature=1, seed=seed).text for seed in (3, 4)],
        "refused": 400,
    }


@pytest.mark.parametrize("stream", [False, True])
def test_curl_hears_it_too(service: Service, plain: Any, stream: bool) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": TEXT}],
        "max_tokens": 24,
        "temperature": 0,
        "stream": stream,
    }
    asked = ["--silent", "--show-error", "--fail-with-body", "--no-buffer"]
    asked += ["--max-time", str(PATIENCE_SECONDS), "--header", "Content-Type: application/json"]
    url = f"{service.http}/v1/chat/completions"
    answer = run("curl", *asked, "--data", json.dumps(body), url)
    if stream:
        *events, last = [line.removeprefix("data: ") for line in answer.split("\n\n") if line]
        assert last == "[DONE]"
        deltas = [each["delta"] for one in events for each in json.loads(one)["choices"]]
        told = "".join(each.get("content") or "" for each in deltas)
    else:
        told = json.loads(answer)["choices"][0]["message"]["content"]
    assert told == plain().text


class Streams:
    """What streams of OpenAI's API have told so far, and how they ended."""

    def __init__(self, service: Service) -> None:
        self.told = [""] * STREAMS
        self.ended: list[bool | None] = [None] * STREAMS
        self._service = service

    async def run(self) -> None:
        url = f"{self._service.http}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            await asyncio.gather(*(self._follow(client, number) for number in range(STREAMS)))

    async def _follow(self, client: openai.AsyncOpenAI, number: int) -> None:
        try:
            stream = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": f"pond {number}"}],
                max_tokens=TOKENS,
                seed=number,
                stream=True,
            )
            async for piece in stream:
                for choice in piece.choices:
                    self.told[number] += choice.delta.content or ""
                    self.ended[number] = choice.finish_reason is not None or None
        except (openai.APIConnectionError, httpx2.TransportError):
            self.ended[number] = False

    async def until(self, ended: int) -> None:
        """Wait until so many have ended."""
        await asyncio.to_thread(until, lambda: self.ended.count(True) >= ended)


def holds_nothing(service: Service) -> bool:
    with grpc.insecure_channel(service.grpc) as channel:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        [load] = stub.GetLoads(vllm_engine_pb2.GetLoadsRequest(), timeout=PATIENCE_SECONDS).loads
    return bool(load.num_total_reqs == 0 and load.token_usage == 0)


async def test_32_streams_while_each_process_dies(service: Service) -> None:
    async with AsyncClient(service.grpc, timeout=READY_SECONDS) as client:
        plain = await asyncio.gather(
            *(
                client.generate(
                    [ChatMessage("user", f"pond {number}")],
                    max_tokens=TOKENS,
                    temperature=1,
                    seed=number,
                    speculation=PLAIN,
                )
                for number in range(STREAMS)
            )
        )
    truth = [each.text for each in plain]
    streams = Streams(service)
    running = asyncio.create_task(streams.run())
    # Early: all of them may end within two seconds of the first.
    await streams.until(1)
    service.child("drafter").kill()
    await streams.until(4)
    service.child("verifier").kill()
    assert None in streams.ended
    await running
    # Nothing is lost behind the server.
    assert streams.told == truth
    # The rest may have been on its way already when the verifier died.
    await asyncio.to_thread(until, lambda: answers(f"{service.http}/health"))
    streams = Streams(service)
    running = asyncio.create_task(streams.run())
    await streams.until(1)
    service.child("server").kill()
    await running
    for told, ended, true in zip(streams.told, streams.ended, truth, strict=True):
        assert told == true if ended else true.startswith(told)
    assert False in streams.ended
    # The next server serves, and what they had is free.
    await asyncio.to_thread(until, lambda: answers(f"{service.http}/health"))
    await asyncio.to_thread(until, lambda: holds_nothing(service))
    streams = Streams(service)
    await streams.run()
    assert streams.told == truth
