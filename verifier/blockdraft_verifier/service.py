"""The gRPC service of the engine."""

import contextlib
import uuid
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import grpc
from llguidance import LLMatcher

from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_protos.v1.verifier_pb2_grpc import VerifierServiceServicer
from blockdraft_runtime.status import ServiceError, invalid_argument, stream_errors, unary_errors
from blockdraft_verifier.computation import Computation, Rounding
from blockdraft_verifier.decode_stream import DecodeStream, engine_stopped
from blockdraft_verifier.engine.listeners import Listener, StepEnd
from blockdraft_verifier.engine.loop import Engine, EngineStoppedError, QueueFullError
from blockdraft_verifier.grammars.compiler import GrammarCompiler
from blockdraft_verifier.requests import parse_request
from blockdraft_verifier.scheduling.grammar import GrammarError
from blockdraft_verifier.scheduling.sequence import Sequence

QUEUE_RETRY_SECONDS = 1.0


class _Served(NamedTuple):
    """What is served, once it is loaded."""

    engine: Engine
    model: str
    computation: Computation
    vocab_size: int
    grammars: GrammarCompiler


class VerifierService(VerifierServiceServicer):
    """Streams tokens from the engine to callers."""

    def __init__(self) -> None:
        """Answer UNAVAILABLE until `open`."""
        self._served: _Served | None = None
        self._draining = False
        self._process = uuid.uuid4().hex
        self._streams: set[DecodeStream] = set()

    def open(
        self,
        engine: Engine,
        model: str,
        computation: Computation,
        vocab_size: int,
        grammars: GrammarCompiler,
    ) -> None:
        """Take requests for `engine` from now on."""
        self._served = _Served(engine, model, computation, vocab_size, grammars)

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
            partial(self._submit, served), served.engine.cancel, served.grammars.compile
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
        engine, model, computation, vocab_size, _ = self._ready()
        exactness = engine.exactness
        if exactness is not None:
            rounding: Rounding = "exact" if exactness.exact else "inexact"
            computation = replace(computation, rounding=rounding)
        response = pb.VerifierServiceDescribeResponse(
            model=model,
            target_fingerprint=computation.target_fingerprint,
            computation_fingerprint=computation.fingerprint,
            vocabulary_size=vocab_size,
            max_context_tokens=engine.settings.scheduler.max_context_tokens,
            max_sequences=engine.settings.scheduler.max_sequences,
            kv_cache_tokens=engine.settings.num_pages * engine.settings.page_size,
            process=self._process,
        )
        if exactness is not None:
            response.exactness.CopyFrom(
                pb.Exactness(
                    exact=exactness.exact,
                    dtype=exactness.dtype,
                    classes=[
                        pb.NumericsClass(steps=map(str, shapes)) for shapes in exactness.classes
                    ],
                    padded=map(str, exactness.padded),
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
                    version=drafter.version,
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

    def _submit(
        self,
        served: _Served,
        request: pb.SequenceRequest,
        grammar: LLMatcher | None,
        listener: Listener,
        on_step_end: StepEnd,
    ) -> Sequence:
        """Check a request and give it to the engine; raise `ServiceError` if either refuses it."""
        self._refuse_if_draining()
        limit = served.engine.settings.scheduler.max_context_tokens
        wanted = parse_request(request, served.vocab_size, limit, grammar)
        try:
            return served.engine.submit(wanted, listener, on_step_end)
        except QueueFullError as error:
            raise ServiceError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "QUEUE_FULL",
                str(error),
                retry_after_seconds=QUEUE_RETRY_SECONDS,
            ) from error
        except EngineStoppedError as error:
            raise engine_stopped(str(error)) from error
        except GrammarError as error:
            raise invalid_argument("emitted_token_ids", str(error)) from error

    def _refuse_if_draining(self) -> None:
        if self._draining:
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE, "DRAINING", "the verifier is shutting down"
            )

    def _ready(self) -> _Served:
        if self._served is None:
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE,
                "LOADING",
                "the model is being loaded",
                retry_after_seconds=1.0,
            )
        return self._served
