"""The two processes between a made-up target and the SDK: a verifier and a server.

Both run the code that serves. Only the target's step is a stand-in, which sleeps.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from prometheus_client import CollectorRegistry

from blockdraft_bench.common.serving_process import Serving
from blockdraft_bench.engine.in_process import InProcessTransport
from blockdraft_bench.engine.instant_drafter import (
    NO_TARGET,
    VOCAB_SIZE,
    InstantRoom,
    instant_drafter,
)
from blockdraft_protos.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from blockdraft_runtime.channel import SERVER_OPTIONS
from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_runtime.settings.server import LimitsSettings, ServerSettings
from blockdraft_server.app import run_server

MODEL = "instant"
# Narrow: what drafting costs is measured elsewhere.
FEATURE_WIDTH = 8
PROMPT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Offer:
    """What the verifier offers.

    Attributes:
        sequences: How many it decodes at once.
        answer_tokens: Of the longest answer.
        step_tokens: Most tokens that a step gains for a sequence.
        step_seconds: What the target takes for a step.
    """

    sequences: int
    answer_tokens: int
    step_tokens: int
    step_seconds: float


class WordTokenizer:
    """A tokenizer each of whose tokens is a word; it is there for what follows the tokens."""

    vocab_size = VOCAB_SIZE
    eos_token_ids: Collection[int] = (0,)

    def __init__(self) -> None:
        """Make the words."""
        self._words = [f" w{token_id}".encode() for token_id in range(VOCAB_SIZE)]

    def encode(self, text: str) -> list[int]:
        """Return the ids of the words of a text of such words."""
        return [int(word[1:]) for word in text.split()]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of all messages."""
        return [token_id for message in messages for token_id in self.encode(message["content"])]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the word."""
        return self._words[token_id]


async def serve_verifier(serving: Serving, address: str, offer: Offer) -> None:
    """Serve an engine whose target sleeps, as `blockdraft verifier` would."""
    # Imported here: the other process must not wait for jax.
    from blockdraft_bench.engine.instant_runner import InstantRunner
    from blockdraft_bench.engine.loading import Capacity, engine_settings
    from blockdraft_bench.engine.timed_link import SoleLink
    from blockdraft_verifier.computation import Computation
    from blockdraft_verifier.engine.loop import Engine
    from blockdraft_verifier.engine.metrics import VerifierMetrics
    from blockdraft_verifier.service import VerifierService

    block_size = max(offer.step_tokens, 2)
    context_tokens = PROMPT_TOKENS + offer.answer_tokens + block_size
    settings = engine_settings(
        Capacity(offer.sequences, context_tokens, "float32"), block_size, "fixed"
    )
    room = InstantRoom(FEATURE_WIDTH, block_size, offer.sequences, context_tokens)
    link = SoleLink(InProcessTransport(instant_drafter(room)))
    runner = InstantRunner(settings, FEATURE_WIDTH, 1.0, step_seconds=offer.step_seconds)
    engine = Engine(runner, settings, link, VOCAB_SIZE, VerifierMetrics(CollectorRegistry()))
    engine.warm_up()
    engine.start()
    service = VerifierService(settings)
    service.open(
        engine, MODEL, Computation(NO_TARGET, "float32", "float", "none", 1, "none"), VOCAB_SIZE
    )
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_VerifierServiceServicer_to_server(service, server)
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set("blockdraft.v1.VerifierService", health_pb2.HealthCheckResponse.SERVING)
    server.add_insecure_port(address)
    await server.start()
    await serving(address)
    service.drain()
    await server.stop(None)
    await asyncio.to_thread(engine.stop)


async def serve_server(serving: Serving, address: str, verifier: str) -> None:
    """Run the server before a verifier, as `blockdraft server` would."""
    settings = ServerSettings(
        target=MODEL,
        verifiers=(verifier,),
        limits=LimitsSettings(),
        process=ProcessSettings(address, drain_seconds=0.0),
    )
    stop_requested = asyncio.Event()

    async def ready() -> None:
        async def wait() -> None:
            await serving(address)
            stop_requested.set()

        waiting.append(asyncio.ensure_future(wait()))

    waiting: list[asyncio.Future[None]] = []
    await run_server(
        settings,
        tokenizer=WordTokenizer(),
        registry=CollectorRegistry(),
        stop_requested=stop_requested,
        on_ready=ready,
    )
    await asyncio.gather(*waiting)
