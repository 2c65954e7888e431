"""The gRPC service of the drafter."""

import asyncio
import logging
import mmap
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from blockdraft_drafter.learning.observer import StreamObserver
from blockdraft_drafter.learning.serving import ServingVersion
from blockdraft_drafter.method import DraftCacheLostError, DraftMethod, MethodLostError
from blockdraft_drafter.metrics import DrafterMetrics
from blockdraft_drafter.requests import data_type
from blockdraft_drafter.session import Session, SlotPool, StepOutOfOrderError
from blockdraft_protos.v1 import drafter_pb2, drafter_pb2_grpc
from blockdraft_runtime import version
from blockdraft_runtime.shared_memory import MAPPED, NOT_MAPPED, attach_offered
from blockdraft_runtime.status import (
    ServiceError,
    invalid_argument,
    stream_errors,
    unary_errors,
)

if TYPE_CHECKING:
    # A method need not compute with JAX, so serving one does not load it.
    from blockdraft_models.decoder.feature_projection import FeatureProjection

logger = logging.getLogger(__name__)

_PIECE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LoadedMethod:
    """A draft method that is ready to serve, and the slots of its draft KV cache."""

    method: DraftMethod
    pool: SlotPool
    target_fingerprint: str
    serving: ServingVersion | None = None  # of a drafter that learns


class DrafterService(drafter_pb2_grpc.DrafterServiceServicer):
    """Serves Describe, FetchProjection and Draft.

    Everything that touches the method or its slots runs on the event loop, in order, so that no
    lock is needed. Steps are short, and handing each to another thread and back would cost more
    than the rest of its work here. While the device hangs, health checks hang too.
    """

    def __init__(
        self,
        metrics: DrafterMetrics,
        folder: Path | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Refuse calls until `serve` is called.

        `folder` is that of the socket that calls come in by, where verifiers offer memory to share;
        `on_failure` is called when the method cannot draft any more.
        """
        self._on_failure = on_failure
        self._folder = folder
        self._metrics = metrics
        self._loaded: LoadedMethod | None = None
        self._projection: drafter_pb2.FeatureProjection | None = None
        self._draining = asyncio.Event()
        self._sessions: set[Session] = set()

    def state(self) -> dict[str, object]:
        """Return the state of the method and its streams, for JSON; empty while it loads."""
        if self._loaded is None:
            return {}
        spec, pool, serving = self._loaded.method.spec, self._loaded.pool, self._loaded.serving
        return {
            "drafter": f"{spec.name}:{spec.fingerprint}",
            "draining": self._draining.is_set(),
            "slots": {"used": pool.used, "total": pool.size, "generation": pool.generation},
            "step_milliseconds": [1e3 * seconds for seconds in self._loaded.method.step_seconds],
            "streams": [session.state() for session in self._sessions],
            "learning": None if serving is None else serving.state(),
        }

    @property
    def loaded(self) -> LoadedMethod:
        """The method that serves; ServiceError while it loads, and once the service drains."""
        if self._draining.is_set():
            raise _draining_error()
        if self._loaded is None:
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE,
                "LOADING",
                "the drafter is still loading",
                retry_after_seconds=1.0,
            )
        return self._loaded

    def serve(self, loaded: LoadedMethod) -> None:
        """Accept calls from now on."""
        projection = loaded.method.spec.projection
        self._projection = None if projection is None else describe_projection(projection)
        self._loaded = loaded
        self._metrics.kv_cache_sequences.set_function(lambda: loaded.pool.used)
        self.show_build()

    def show_build(self) -> None:
        """Publish the weights that draft now."""
        if self._loaded is None:
            return
        spec, target = self._loaded.method.spec, self._loaded.target_fingerprint
        self._metrics.build.clear()
        self._metrics.build.labels(version(), spec.name, spec.fingerprint, target).set(1)

    def describe(self, target_fingerprint: str) -> drafter_pb2.DrafterServiceDescribeResponse:
        """Describe the method; ServiceError unless it drafts for this target."""
        loaded = self.loaded
        if not target_fingerprint:
            raise invalid_argument("target_fingerprint", "target_fingerprint must not be empty")
        if target_fingerprint != loaded.target_fingerprint:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "TARGET_MISMATCH",
                f"the drafter drafts for target {loaded.target_fingerprint},"
                f" not for {target_fingerprint}",
                metadata={
                    "drafter_target_fingerprint": loaded.target_fingerprint,
                    "target_fingerprint": target_fingerprint,
                },
            )
        spec = loaded.method.spec
        return drafter_pb2.DrafterServiceDescribeResponse(
            method=spec.name,
            block_size=spec.block_size,
            target_layer_ids=spec.target_layer_ids,
            feature_width=spec.feature_width,
            feature_dtype=data_type(spec.feature_dtype),
            max_sequences=spec.max_sequences,
            max_context_tokens=spec.max_context_tokens,
            max_feature_rows=spec.max_feature_rows,
            fingerprint=spec.fingerprint,
            trained=spec.trained,
            step_seconds=loaded.method.step_seconds,
            shortest_step_seconds=loaded.method.shortest_step_seconds,
            projection=self._projection,
            learns=loaded.serving is not None,
            version=None if loaded.serving is None else loaded.serving.message,
        )

    def open(self, shared: mmap.mmap | None) -> Session:
        """Begin a stream whose features may be in `shared` memory; `close` must follow."""
        loaded = self.loaded
        observer = None if loaded.serving is None else StreamObserver(loaded.serving)
        session = Session(loaded.method, loaded.pool, shared, observer)
        self._sessions.add(session)
        return session

    def answer(
        self, session: Session, request: drafter_pb2.DraftRequest
    ) -> drafter_pb2.DraftResponse:
        """Serve the next request of a stream; ServiceError if the stream must end."""
        try:
            response = session.step(request)
        except StepOutOfOrderError as error:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "STEP_OUT_OF_ORDER",
                str(error),
                metadata={"expected_step_id": error.expected, "step_id": error.received},
            ) from error
        except DraftCacheLostError as error:
            logger.exception("a draft step failed")
            if isinstance(error, MethodLostError):
                self._on_failure()
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE,
                "DRAFT_CACHE_LOST",
                "the device step failed and the draft KV cache is lost; open a new stream",
            ) from error
        self._metrics.observe(request, response)
        return response

    def close(self, session: Session) -> None:
        """End a stream."""
        session.close()
        self._sessions.discard(session)

    def drain(self) -> None:
        """Refuse calls and end every Draft stream after its step in flight.

        A verifier never ends its stream by itself, and loses nothing by decoding plainly.
        """
        self._draining.set()

    @unary_errors
    async def Describe(  # noqa: N802
        self, request: drafter_pb2.DrafterServiceDescribeRequest, context: Any
    ) -> drafter_pb2.DrafterServiceDescribeResponse:
        """Describe the method, after checking that it drafts for the caller's target."""
        return self.describe(request.target_fingerprint)

    @stream_errors
    async def FetchProjection(  # noqa: N802
        self, request: drafter_pb2.FetchProjectionRequest, context: Any
    ) -> AsyncIterator[drafter_pb2.FetchProjectionResponse]:
        """Stream the matrix that features are to be multiplied with."""
        projection = self.loaded.method.spec.projection
        if projection is None or self._projection is None:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "NO_PROJECTION",
                "the drafter takes features as the target's layers give them",
            )
        if request.fingerprint != self._projection.fingerprint:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "PROJECTION_MISMATCH",
                f"the projection is {self._projection.fingerprint}, not {request.fingerprint}",
            )
        for piece in projection_pieces(projection):
            yield piece

    @stream_errors
    async def Draft(  # noqa: N802
        self, request_iterator: AsyncIterator[drafter_pb2.DraftRequest], context: Any
    ) -> AsyncIterator[drafter_pb2.DraftResponse]:
        """Serve one verifier until it ends the stream, breaks the protocol or goes away."""
        shared = self._attach(context)
        session = self.open(shared)
        draining = asyncio.ensure_future(self._draining.wait())

        def ended(_: Any) -> None:
            draining.cancel()
            self.close(session)

        # Unlike a finally clause, this runs at once however the call ends.
        context.add_done_callback(ended)
        await context.send_initial_metadata(NOT_MAPPED if shared is None else MAPPED)
        while (request := await self._next(request_iterator, draining)) is not None:
            yield self.answer(session, request)

    def _attach(self, context: Any) -> mmap.mmap | None:
        """Return the memory that a verifier offers, or None: features then come in messages."""
        if self._folder is None:
            return None
        try:
            return attach_offered(context.invocation_metadata(), self._folder)
        except (OSError, ValueError) as error:
            logger.warning("the memory that a verifier offered is not mapped: %s", error)
            return None

    async def _next(
        self,
        requests: AsyncIterator[drafter_pb2.DraftRequest],
        draining: asyncio.Future[Any],
    ) -> drafter_pb2.DraftRequest | None:
        """Return the next request, or None at the end of the stream; raises if draining."""

        async def read() -> drafter_pb2.DraftRequest | None:
            return await anext(requests, None)

        reading = asyncio.ensure_future(read())
        try:
            await asyncio.wait((reading, draining), return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                raise _draining_error()
            return reading.result()
        finally:
            reading.cancel()


def _draining_error() -> ServiceError:
    return ServiceError(grpc.StatusCode.UNAVAILABLE, "DRAINING", "the drafter is shutting down")


def describe_projection(projection: "FeatureProjection") -> drafter_pb2.FeatureProjection:
    """Describe a projection, whose arrays are on the host, for the handshake."""
    return drafter_pb2.FeatureProjection(
        input_width=projection.input_width,
        dtype=data_type(projection.weight.dtype),
        norm_epsilon=None if projection.scale is None else projection.eps,
        input_norm_epsilon=None if projection.input_scale is None else projection.eps,
        input_norm_joint=projection.joint,
        fingerprint=projection.fingerprint(),
    )


def projection_pieces(
    projection: "FeatureProjection",
) -> Iterator[drafter_pb2.FetchProjectionResponse]:
    """Yield the arrays of a projection, piece by piece."""
    for array in projection.arrays():
        if array is not None:
            elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for start in range(0, elements.size, _PIECE_BYTES):
                piece = elements[start : start + _PIECE_BYTES].tobytes()
                yield drafter_pb2.FetchProjectionResponse(data=piece)
