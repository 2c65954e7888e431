"""The gRPC service of the engine."""

import contextlib
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import grpc
from llguidance import LLMatcher

from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_protos.v1.verifier_pb2_grpc import VerifierServiceServicer
from blockdraft_runtime.status import ServiceError, stream_errors, unary_errors
from blockdraft_verifier.computation import Computation
from blockdraft_verifier.decode_stream import DecodeStream, engine_stopped
from blockdraft_verifier.description import (
    drafter_message,
    drafting_message,
    exactness_message,
)
from blockdraft_verifier.engine.listeners import Listener, StepEnd
from blockdraft_verifier.engine.loop import Engine, EngineStoppedError, QueueFullError
from blockdraft_verifier.grammars.compiler import GrammarCompiler
from blockdraft_verifier.requests import parse_request
from blockdraft_verifier.scheduling.sequence import TokenSequence

QUEUE_RETRY_SECONDS = 1.0


class Loaded(NamedTuple):
    """The served parts, once the target is loaded."""

    engine: Engine
    model: str
    computation: Computation
    vocab_size: int
    grammars: GrammarCompiler
    adapters: Sequence[str] = ()  # their names


class VerifierService(VerifierServiceServicer):
    """Streams tokens from the engine to callers."""

    def __init__(self, loading: Callable[[], str] = lambda: "starting") -> None:
        """Answer UNAVAILABLE until `open`; `loading` says how far the start is."""
        self._loading = loading
        self._served: Loaded | None = None
        self._draining = False
        self._process = uuid.uuid4().hex
        self._streams: set[DecodeStream] = set()

    def open(self, loaded: Loaded) -> None:
        """Take requests from now on."""
        self._served = loaded

    def drain(self) -> None:
        """Refuse new sequences from now on; each stream ends when its others have ended."""
        self._draining = True
        for stream in self._streams:
            stream.drain()

    @stream_errors
    async def Decode(  # noqa: N802
        self,
        requests: AsyncIterable[pb.DecodeRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.DecodeResponse]:
        """Decode the sequences of a server; the end of the call frees their pages."""
        self._refuse_if_draining()
        served = self._ready()
        stream = DecodeStream(
            partial(self._submit, served),
            served.engine.cancel,
            served.engine.resume,
            served.grammars,
        )
        self._streams.add(stream)
        try:
            async with contextlib.aclosing(stream.serve(requests)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._streams.discard(stream)

    @unary_errors
    async def Describe(  # noqa: N802
        self,
        request: pb.VerifierServiceDescribeRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.VerifierServiceDescribeResponse:
        """Describe the target and the attached drafter."""
        served = self._ready()
        engine, computation = served.engine, served.computation
        limits, exactness = engine.settings.scheduler, engine.exactness
        if exactness is not None:
            computation = replace(computation, rounding="exact" if exactness.exact else "inexact")
        return pb.VerifierServiceDescribeResponse(
            model=served.model,
            target_fingerprint=computation.target_fingerprint,
            computation_fingerprint=computation.fingerprint,
            vocabulary_size=served.vocab_size,
            max_context_tokens=engine.scheduler.most_tokens,
            max_sequences=limits.max_sequences,
            kv_cache_tokens=engine.settings.num_pages * engine.settings.page_size,
            process=self._process,
            exactness=None if exactness is None else exactness_message(exactness),
            drafter=None if engine.drafter is None else drafter_message(engine.drafter),
            drafting=drafting_message(engine),
            adapters=served.adapters,
            canvas_tokens=engine.scheduler.canvas_tokens if engine.scheduler.diffusion else 0,
        )

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

    def _submit(
        self,
        served: Loaded,
        request: pb.SequenceRequest,
        grammar: LLMatcher | None,
        listener: Listener,
        on_step_end: StepEnd,
    ) -> TokenSequence:
        """Check a request and give it to the engine; raise `ServiceError` if either refuses it."""
        self._refuse_if_draining()
        limit = served.engine.scheduler.most_tokens
        generation_request = parse_request(
            request,
            served.vocab_size,
            limit,
            grammar,
            served.adapters,
            denoises=served.engine.scheduler.diffusion is not None,
        )
        try:
            return served.engine.submit(generation_request, listener, on_step_end)
        except QueueFullError as error:
            raise ServiceError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "QUEUE_FULL",
                str(error),
                retry_after_seconds=QUEUE_RETRY_SECONDS,
            ) from error
        except EngineStoppedError as error:
            raise engine_stopped(str(error)) from error

    def _refuse_if_draining(self) -> None:
        if self._draining:
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE, "DRAINING", "the verifier is shutting down"
            )

    def _ready(self) -> Loaded:
        if self._served is None:
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE,
                "LOADING",
                f"the verifier is {self._loading()}",
                retry_after_seconds=1.0,
            )
        return self._served
