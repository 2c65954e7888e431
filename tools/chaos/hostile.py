"""What hostile callers send, each kind from a process of its own."""

import asyncio
import contextlib
import gzip
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import grpc

from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1.inference_pb2_grpc import InferenceServiceStub

GENERATE, HEALTH = "/blockdraft.v1.InferenceService/Generate", "/grpc.health.v1.Health/Check"


class Attack:
    """What one hostile process sends, until a time; counts what it is answered.

    Attributes:
        answers: How many answers there were of each kind, with the longest wait for one.
    """

    def __init__(self, http: str, address: str, go: Callable[[], float]) -> None:
        """Attack a service at its addresses; `go` waits for the beginning, and returns the end."""
        self._http, self._grpc, self._go = http, address, go
        self._end = 0.0
        self.answers: dict[str, list[float]] = {}

    async def compressed_bodies(self) -> None:
        """Send 0.3 MB that inflate to 300 MB, eight at once."""
        body = gzip.compress(bytes(300_000_000))
        await self._posts(8, lambda _: body, {"Content-Encoding": "gzip"})

    async def compressed_messages(self) -> None:
        """Send messages that inflate to 200 MB, to Health and to the service."""
        body = bytes(200_000_000)
        self._end = self._go()
        async with grpc.aio.insecure_channel(self._grpc) as channel:
            while time.monotonic() < self._end:
                for path in (HEALTH, GENERATE):
                    method: Any = channel.unary_unary(path)
                    call = method(body, compression=grpc.Compression.Gzip)
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await call
                    self._note(f"{(await call.code()).name}", 0.0)

    async def large_numbers(self) -> None:
        """Send short orders for much work: long lists, texts and many completions of them."""
        # As much as a body may have.
        bodies = [
            {"prompt": [1] * 1_900_000, "n": 16},
            {"prompt": ["a duck"] * 64, "n": 16, "max_tokens": 1},
            {"prompt": "a duck " * 140_000, "n": 16},
            {"prompt": "a duck " * 1000, "n": 16, "max_tokens": 1},
            {"prompt": "a duck", "allowed_token_ids": [7] * 1_500_000},
        ]
        texts = [json.dumps(body, separators=(",", ":")).encode() for body in bodies]
        await self._posts(8 * len(texts), lambda number: texts[number % len(texts)], {})

    async def abandoned_schemas(self) -> None:
        """Leave 25 schemas of 3,000 optional properties behind, then ask as others do."""

        def body(schema: object) -> bytes:
            outputs = {"structured_outputs": {"json": schema}}
            return json.dumps({"prompt": "x", "max_tokens": 8, **outputs}).encode()

        def wide(name: int) -> object:
            # Of this run alone: what was compiled before is kept.
            parts = {f"{os.getpid()}_{name}_{at}": {"type": "integer"} for at in range(3000)}
            return {"type": "object", "properties": parts, "additionalProperties": False}

        bodies = [body(wide(number)) for number in range(25)]
        self._end = self._go()
        await asyncio.gather(*(self._post(one, {}, 1.0) for one in bodies))
        number = 0
        while time.monotonic() < self._end:
            await self._post(
                body({"const": f"{os.getpid()} {(number := number + 1)}"}), {}, name="other"
            )

    async def silent_readers(self) -> None:
        """Ask for long streams with deadlines of four seconds, then stop without reading."""
        self._end = self._go()
        async with grpc.aio.insecure_channel(self._grpc) as channel:
            request = inference_pb2.StreamGenerateRequest(
                prompt=inference_pb2.Prompt(text="The ducks"),
                sampling=inference_pb2.SamplingOptions(max_output_tokens=900, log_probs=20),
            )
            stub: Any = InferenceServiceStub(channel)
            calls = [stub.StreamGenerate(request, timeout=4.0) for _ in range(16)]
            await asyncio.sleep(1.0)
            os.kill(os.getpid(), signal.SIGSTOP)
            del calls

    async def slow_connections(self) -> None:
        """Open 1,000 connections: slow headers, slow bodies, and silence."""
        host, _, port = self._http.rpartition(":")
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        begins = (head, head + b"\r\nContent-Length: 1000000\r\n\r\n{", b"", b"")
        writers = []
        self._end = self._go()
        for number in range(1000):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(begins[number % 4])
                writers.append(writer)
        while time.monotonic() < self._end:
            for number, writer in enumerate(writers):
                if number % 4 < 2:
                    writer.write(b"x")
            await asyncio.sleep(0.5)

    async def _posts(
        self, at_once: int, body: Callable[[int], bytes], headers: dict[str, str]
    ) -> None:
        async def caller(number: int) -> None:
            while time.monotonic() < self._end:
                await self._post(body(number), headers)

        self._end = self._go()
        await asyncio.gather(*map(caller, range(at_once)))

    async def _post(
        self, body: bytes, headers: dict[str, str], patience: float = 60.0, name: str = ""
    ) -> None:
        began, url = time.monotonic(), f"http://{self._http}/v1/completions"
        headers = {"Content-Type": "application/json", **headers}
        said = "left"
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(patience),
                aiohttp.request("POST", url, data=body, headers=headers) as response,
            ):
                await response.read()
                said = str(response.status)
        self._note(f"{name} {said}".strip(), time.monotonic() - began)

    def _note(self, kind: str, seconds: float) -> None:
        self.answers.setdefault(kind, []).append(seconds)


ATTACKS = [name for name in vars(Attack) if not name.startswith("_")]


def attack(name: str, http: str, address: str, seconds: float, pipe: Any) -> None:
    """Prepare, attack when told to, and tell what was answered."""

    def go() -> float:
        pipe.send("prepared")
        pipe.recv()
        return time.monotonic() + seconds

    # The processors are those of the service.
    os.nice(19)
    hostile = Attack(http, address, go)
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        asyncio.run(getattr(hostile, name)())
    pipe.send({kind: [len(t), round(max(t), 2)] for kind, t in hostile.answers.items()})
