"""The gRPC face of the engine."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, NamedTuple

import grpc

from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_protos.v1.verifier_pb2_grpc import VerifierServiceServicer
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_runtime.status import ServiceError, stream_errors, unary_errors
from blockdraft_verifier.computation import Computation, Rounding
from blockdraft_verifier.engine.loop import Engine, EngineStoppedError, QueueFullError, TokensGained
from blockdraft_verifier.exactness.classes import shape_word
from blockdraft_verifier.requests import parse_request, to_response

QUEUE_RETRY_SECONDS = 1.0
LOADING = ServiceError(
    grpc.StatusCode.UNAVAILABLE, "LOADING", "the model is being loaded", retry_after_seconds=1.0
)


class _Served(NamedTuple):
    """What is served, once it is loaded."""

    engine: Engine
    model: str
    computation: Computation
    vocab_size: int


class VerifierService(VerifierServiceServicer):
    """Streams tokens from the engine to callers."""

    def __init__(self, settings: EngineSettings) -> None:
        """Answer UNAVAILABLE until `open`."""
        self._settings = settings
        self._served: _Served | None = None
        self._draining = False

    def open(self, engine: Engine, model: str, computation: Computation, vocab_size: int) -> None:
        """Take requests for `engine` from now on."""
        self._served = _Served(engine, model, computation, vocab_size)

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True

    @stream_errors
    async def StreamGenerateTokens(  # noqa: N802
        self,
        request: pb.StreamGenerateTokensRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.StreamGenerateTokensResponse]:
        """Continue a sequence; a cancelled call frees its pages."""
        if self._draining:
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE, "DRAINING", "the verifier is shutting down"
            )
        engine, _, _, vocab_size = self._ready()
        limit = self._settings.scheduler.max_context_tokens
        wanted = parse_request(request, vocab_size, limit)
        events: asyncio.Queue[TokensGained] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listen(event: TokensGained) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        try:
            sequence = engine.submit(wanted, listen)
        except QueueFullError as error:
            raise ServiceError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "QUEUE_FULL",
                str(error),
                retry_after_seconds=QUEUE_RETRY_SECONDS,
            ) from error
        except EngineStoppedError as error:
            raise ServiceError(grpc.StatusCode.UNAVAILABLE, "ENGINE_STOPPED", str(error)) from error
        try:
            while True:
                event = await events.get()
                if event.failure is not None:
                    raise ServiceError(grpc.StatusCode.UNAVAILABLE, "ENGINE_STOPPED", event.failure)
                yield to_response(event, sequence)
                if event.finish_reason is not None:
                    return
        finally:
            engine.cancel(sequence)

    @unary_errors
    async def Describe(  # noqa: N802
        self,
        request: pb.VerifierServiceDescribeRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.VerifierServiceDescribeResponse:
        """Describe the target and the attached drafter."""
        engine, model, computation, vocab_size = self._ready()
        exactness = engine.exactness
        if exactness is not None:
            rounding: Rounding = "exact" if exactness.exact else "inexact"
            computation = replace(computation, rounding=rounding)
        response = pb.VerifierServiceDescribeResponse(
            model=model,
            target_fingerprint=computation.target_fingerprint,
            computation_fingerprint=computation.fingerprint,
            vocabulary_size=vocab_size,
            max_context_tokens=self._settings.scheduler.max_context_tokens,
            max_sequences=self._settings.scheduler.max_sequences,
        )
        if exactness is not None:
            response.exactness.CopyFrom(
                pb.Exactness(
                    exact=exactness.exact,
                    dtype=exactness.dtype,
                    classes=[
                        pb.RoundingClass(steps=map(shape_word, shapes))
                        for shapes in exactness.classes
                    ],
                )
            )
        drafter = engine.drafter
        if drafter is not None:
            response.drafter.CopyFrom(
                pb.AttachedDrafter(
                    method=drafter.method,
                    block_size=drafter.block_size,
                    fingerprint=drafter.fingerprint,
                    trained=drafter.trained,
                )
            )
        return response

    @unary_errors
    async def GetLoad(  # noqa: N802
        self, request: pb.GetLoadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetLoadResponse:
        """Report the present load."""
        load = self._ready().engine.load()
        return pb.GetLoadResponse(
            running_sequences=load.running,
            waiting_sequences=load.waiting,
            used_pages=load.used_pages,
            total_pages=load.total_pages,
        )

    def _ready(self) -> _Served:
        if self._served is None:
            raise LOADING
        return self._served
