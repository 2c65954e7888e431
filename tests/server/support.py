"""A tokenizer of bytes and a running server, for the tests of the server."""

import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from tests.fakes.verifier import FakeVerifier, running_verifier, unix_address
from tests.patience import PATIENCE_SECONDS

from blockdraft_models.tokenizer.text_decoder import Utf8Decoder
from blockdraft_protos.v1 import inference_pb2, inference_pb2_grpc
from blockdraft_runtime.process import serve
from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_runtime.settings.server import ServerSettings
from blockdraft_runtime.status import ServiceError, received_error
from blockdraft_server.app import ServerApp
from blockdraft_server.routing.places import Resolve, resolve
from blockdraft_server.traces import Traces

EOS = 256
_OPTIONS = ("traces", "channel_credentials", "drain_seconds", "resolve", "tokenizer")


class ByteTokenizer:
    """One token per byte; 256 ends the answer, 257 begins a turn of a conversation."""

    vocab_size = 258
    eos_token_ids = (EOS,)
    control_tokens: Mapping[str, int] = {"<end>": EOS, "<turn>": 257}

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_rendered(self, text: str) -> list[int]:
        control = self.control_tokens
        pieces = re.split(f"({'|'.join(map(re.escape, control))})", text)
        parts = ([control[piece]] if piece in control else piece.encode() for piece in pieces)
        return [token for part in parts for token in part]

    template = None

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        if messages[-1]["role"] == "system":
            raise ValueError("a conversation must not end with a system message")
        return [
            token
            for message in messages
            for token in (257, *message["role"][:1].encode(), *message["content"].encode())
        ]

    def encode_inner(self, text: str) -> list[int]:
        return self.encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def text_decoder(self, *, continues: bool = False) -> Utf8Decoder:
        return Utf8Decoder(self.token_bytes)


@dataclass
class Running:
    """A server that runs, and what a test wants from it."""

    address: str
    registry: CollectorRegistry
    stop_requested: asyncio.Event
    app: ServerApp
    channel: grpc.aio.Channel
    tokenizer: ByteTokenizer

    @property
    def stub(self) -> "inference_pb2_grpc.InferenceServiceAsyncStub":
        return inference_pb2_grpc.InferenceServiceStub(self.channel)

    def generate(
        self,
        text: str = "\x01\x02",
        *,
        metadata: "tuple[tuple[str, str], ...]" = (),
        timeout: float | None = None,
        **sampling: object,
    ) -> "grpc.aio.UnaryUnaryCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]":
        """Ask for a whole answer."""
        request = whole(text_request(text, **sampling))
        return self.stub.Generate(request, metadata=metadata, timeout=timeout)

    def stream(
        self,
        text: str = "\x01\x02",
        *,
        metadata: "tuple[tuple[str, str], ...]" = (),
        timeout: float | None = None,
        **sampling: object,
    ) -> (
        "grpc.aio.UnaryStreamCall[inference_pb2.StreamGenerateRequest, "
        "inference_pb2.StreamGenerateResponse]"
    ):
        """Ask for an answer in messages."""
        request = text_request(text, **sampling)
        return self.stub.StreamGenerate(request, metadata=metadata, timeout=timeout)

    async def healthy(self, service: str = "") -> bool:
        health = health_pb2_grpc.HealthStub(self.channel)
        response = await health.Check(  # type: ignore[attr-defined]  # its stubs lack it
            health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_SECONDS
        )
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    @property
    def healthy_verifiers(self) -> int:
        verifiers: Any = self.app.inspect()["verifiers"]
        return sum(each["healthy"] for each in verifiers)

    async def until_context(self, tokens: int) -> None:
        """Wait until a verifier whose context has so many tokens is known."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            request = inference_pb2.GetModelRequest()
            while (await self.stub.GetModel(request)).max_context_tokens != tokens:
                await asyncio.sleep(0.01)

    async def until_healthy(self, healthy: bool) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.healthy() != healthy:
                await asyncio.sleep(0.01)

    def metric(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"blockdraft_server_{name}", labels)
        return 0.0 if value is None else value


@contextlib.asynccontextmanager
async def running_server(
    settings: ServerSettings,
    *,
    api_keys: Collection[str] = (),
    traces: Traces | None = None,
    wait: bool = True,
    channel_credentials: grpc.ChannelCredentials | None = None,
    drain_seconds: float = 2.0,
    resolve: Resolve = resolve,
    tokenizer: ByteTokenizer | None = None,
) -> AsyncIterator[Running]:
    """Run a server on a unix socket; waits until it serves unless told not to.

    `api_keys` are the lines of a file of keys; without any, everyone is let in.
    """
    registry, tokenizer = CollectorRegistry(), tokenizer or ByteTokenizer()
    stop_requested, ready = asyncio.Event(), asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    with unix_address() as address, _key_file(settings, api_keys) as settings:
        app = ServerApp(
            settings,
            tokenizer=tokenizer,  # type: ignore[arg-type]  # it has what the server uses
            traces=traces,
            registry=registry,
            resolve=resolve,
        )
        serving = asyncio.ensure_future(
            serve(
                app,
                ProcessSettings(address, drain_seconds=drain_seconds),
                server=app.make_server(),
                credentials=app.credentials(),
                health=app.health,
                reflection=not settings.production,
                registry=registry,
                stop_requested=stop_requested,
                on_ready=on_ready,
            )
        )
        if wait:
            await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
        channel = (
            grpc.aio.insecure_channel(address)
            if channel_credentials is None
            else grpc.aio.secure_channel(
                address,
                channel_credentials,
                options=(("grpc.ssl_target_name_override", "localhost"),),
            )
        )
        try:
            yield Running(address, registry, stop_requested, app, channel, tokenizer)
        finally:
            await channel.close()
            stop_requested.set()
            await asyncio.wait_for(serving, PATIENCE_SECONDS)


@contextlib.asynccontextmanager
async def serving(
    *fakes: FakeVerifier, api_keys: Collection[str] = (), **options: Any
) -> AsyncIterator[Running]:
    """Run verifiers and a server before them; waits until it knows them all.

    Options are those of `running_server`; all others are settings.
    """
    own = {name: options.pop(name) for name in _OPTIONS if name in options}
    async with contextlib.AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(running_verifier(fake)) for fake in fakes]
        server = running_server(settings_for(*addresses, **options), api_keys=api_keys, **own)
        running = await stack.enter_async_context(server)
        await until(lambda: running.healthy_verifiers == len(fakes))
        yield running


@contextlib.contextmanager
def _key_file(settings: ServerSettings, lines: Collection[str]) -> Iterator[ServerSettings]:
    """Give settings that let in these lines of a file of keys; as they were if there are none."""
    if not lines:
        yield settings
        return
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(lines))
        file.flush()
        yield replace(settings, api_key_file=Path(file.name))


def text_request(text: str = "\x01\x02", **sampling: object) -> inference_pb2.StreamGenerateRequest:
    """Return a request for a continuation of `text`."""
    return inference_pb2.StreamGenerateRequest(
        prompt=inference_pb2.Prompt(text=text),
        sampling=inference_pb2.SamplingOptions(**sampling),  # type: ignore[arg-type]
    )


def tokens_of(messages: Iterable[inference_pb2.StreamGenerateResponse]) -> list[int]:
    """Return the tokens of a stream's messages."""
    return [token for message in messages for token in message.token_ids]


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a caller with a key."""
    return (("authorization", f"Bearer {key}"),)


def whole(request: inference_pb2.StreamGenerateRequest) -> inference_pb2.GenerateRequest:
    """Return the same request for the unary method."""
    return inference_pb2.GenerateRequest.FromString(request.SerializeToString())


def settings_for(*addresses: str, **changes: object) -> ServerSettings:
    """Return a configuration for verifiers at `addresses` that looks at them often."""
    return ServerSettings(verifiers=addresses, poll_seconds=0.05, **changes)  # type: ignore[arg-type]


async def failure(call: Awaitable[object]) -> ServiceError:
    """Return the typed error that `call` ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = received_error(caught.value)
    assert error is not None
    return error


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
