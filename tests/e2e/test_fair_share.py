"""A tenant that floods the service and one that asks now and then, before a real engine."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from tests.fakes.verifier import SERVICE, unix_address
from tests.server.support import Running, running_server, settings_for, until
from tests.verifier.grammars import tiny_grammars
from tests.verifier.support import CONFIG, TINY_ENGINE, make_engine, tiny_decoder

from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from blockdraft_verifier.computation import Computation
from blockdraft_verifier.engine.listeners import Listener, StepEnd, TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence
from blockdraft_verifier.service import Loaded, VerifierService

PLACES, FLOOD = TINY_ENGINE.scheduler.max_sequences, 24
# What prompts begin with.
FLOODING, TRICKLING = 1, 2
# Of the shapes that most tests compile.
ENGINE = replace(TINY_ENGINE, scheduler=replace(TINY_ENGINE.scheduler, max_waiting=256))
COMPUTATION = Computation("0123456789abcdef", "float32", "float", "auto", "cpu", 1, "jaxlib")


@contextlib.asynccontextmanager
async def serving_verifier(engine: Engine) -> AsyncIterator[str]:
    service, health = VerifierService(), HealthServicer()
    service.open(Loaded(engine, "tiny", COMPUTATION, CONFIG.vocab_size, tiny_grammars()))
    server = grpc.aio.server()
    add_VerifierServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    with unix_address() as address:
        server.add_insecure_port(address)
        await server.start()
        yield address
        await server.stop(None)


async def ask(server: Running, key: str, token: int) -> None:
    request = inference_pb2.GenerateRequest(
        prompt=inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(values=[token])),
        sampling=inference_pb2.SamplingOptions(max_output_tokens=8, ignore_eos=True),
    )
    await server.stub.Generate(request, metadata=(("authorization", f"Bearer {key}"),))


def overtaken(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """Return what gets, by first token of the prompt, how many others ended before a request did.

    It is counted where requests come to the engine and end there: how long a caller takes to hear
    of it, or to ask again, is of no account.
    """
    submit, found, ended = engine.submit, defaultdict[int, list[int]](list), 0

    def watched(
        request: GenerationRequest, listener: Listener, on_step_end: StepEnd
    ) -> TokenSequence:
        before = ended

        def told(event: TokensGained) -> None:
            nonlocal ended
            if event.finish_reason is not None:
                found[request.prompt[0]].append(ended - before)
                ended += 1
            listener(event)

        return submit(request, told, on_step_end)

    monkeypatch.setattr(engine, "submit", watched)
    return found


async def test_who_floods_the_service_holds_up_only_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(tiny_decoder(), config=ENGINE)
    found, enough = overtaken(engine, monkeypatch), asyncio.Event()
    try:
        async with (
            serving_verifier(engine) as address,
            running_server(settings_for(address), api_keys=["flood", "trickle"]) as server,
        ):

            async def flood() -> None:
                while not enough.is_set():
                    await ask(server, "flood", FLOODING)

            flooding = [asyncio.ensure_future(flood()) for _ in range(FLOOD)]
            await until(lambda: len(engine._sequences) == FLOOD)
            engine.start()
            await until(lambda: engine.load().running == PLACES)
            for _ in range(3):
                await ask(server, "trickle", TRICKLING)
            enough.set()
            await asyncio.gather(*flooding)
    finally:
        engine.stop()
    # Those who held the places ended, and as many again while the request itself ran.
    assert len(found[TRICKLING]) == 3
    assert max(found[TRICKLING]) <= 3 * PLACES, found[TRICKLING]
    # The last of the flood had to wait for all the others.
    assert len(found[FLOODING]) >= FLOOD
    assert max(found[FLOODING]) >= FLOOD - PLACES
