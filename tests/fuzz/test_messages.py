"""Mutated messages to each service: a typed error or a response, and never anything else."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry
from tests.drafter.process import running_drafter, tiny_drafter_config, write_tiny_target
from tests.fakes.verifier import FakeVerifier, running_verifier
from tests.server.support import running_server, settings_for, until
from tests.verifier.grammars import tiny_grammars
from tests.verifier.support import CONFIG, make_engine, tiny_decoder
from tools.fuzz.calls import Tally, fuzz
from tools.fuzz.services import (
    drafter_methods,
    inference_methods,
    known_draft,
    known_response,
    known_tokens,
    verifier_methods,
)

from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_protos.v1 import drafter_pb2
from blockdraft_protos.v1.drafter_pb2_grpc import DrafterServiceStub
from blockdraft_protos.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from blockdraft_runtime.channel import SERVER_OPTIONS
from blockdraft_runtime.status import add_strictly
from blockdraft_verifier.computation import Computation
from blockdraft_verifier.service import Loaded, VerifierService

MESSAGES = 800
COMPUTATION = Computation("0123456789abcdef", "float32", "float", "auto", "cpu", 1, "jaxlib")


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


async def check(fuzzing: Callable[[int], Awaitable[Tally]]) -> None:
    """Fuzz a little, then more: no bad ending, and no descriptor kept for it."""
    tally = await fuzzing(MESSAGES // 5)
    before = descriptors()
    tally.bad += (more := await fuzzing(MESSAGES)).bad
    assert not tally.bad, tally.bad[:3]
    # Right ones are among them, and wrong ones.
    assert more.responses["OK"] > MESSAGES // 20
    assert (
        sum(count for name, count in more.responses.items() if "INVALID" in name) > MESSAGES // 20
    )
    assert descriptors() <= before + 2


async def test_messages_to_the_server() -> None:
    verifier = FakeVerifier()
    async with (
        running_verifier(verifier) as address,
        running_server(settings_for(address)) as running,
    ):
        await check(
            lambda count: fuzz(
                running.channel, inference_methods(), known_response(running.channel), count, 1
            )
        )
        await until(lambda: running.metric("requests_running") == 0)
        assert running.metric("requests_waiting") == 0


async def test_messages_to_the_verifier(tmp_path: Path) -> None:
    engine = make_engine(tiny_decoder())
    engine.start()
    service = VerifierService()
    service.open(Loaded(engine, "tiny", COMPUTATION, CONFIG.vocab_size, tiny_grammars()))
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_strictly(add_VerifierServiceServicer_to_server, service, server)
    server.add_insecure_port(f"unix:{tmp_path}/s")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
            await check(
                lambda count: fuzz(channel, verifier_methods(), known_tokens(channel), count, 2)
            )
        await until(lambda: engine.load().used_pages == 0)
    finally:
        await server.stop(None)
        await asyncio.to_thread(engine.stop)


async def test_messages_to_the_drafter(tmp_path: Path) -> None:
    target = write_tiny_target(tmp_path / "target")
    fingerprint = load_checkpoint_config(target).fingerprint
    registry = CollectorRegistry()
    async with (
        running_drafter(tiny_drafter_config(target), tmp_path / "s", registry) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub: Any = DrafterServiceStub(channel)
        request = drafter_pb2.DrafterServiceDescribeRequest(target_fingerprint=fingerprint)
        methods = drafter_methods(await stub.Describe(request), fingerprint)
        await check(lambda count: fuzz(channel, methods, known_draft(channel, methods), count, 3))
        await until(lambda: registry.get_sample_value("blockdraft_drafter_kv_cache_sequences") == 0)
