"""Draft streams within a process: requests and responses are passed as they are."""

import asyncio
import mmap
import time
from collections.abc import Callable

from blockdraft_drafter.service import DrafterService
from blockdraft_drafter.session import Session
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.channel import Backoff
from blockdraft_runtime.status import ServiceError
from blockdraft_verifier.drafting.feature_writers import SHARED_BYTES, SharedWriter
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import (
    RECONNECTING,
    DraftTransport,
    QueuedResponses,
    TransportError,
)


class LocalTransport(QueuedResponses):
    """A stream to the drafter of this process; a `DraftTransport`.

    The drafter answers on its own event loop, in the order of the requests. Nothing here waits for
    that loop, which a hanging device holds.
    """

    def __init__(
        self,
        service: DrafterService,
        loop: asyncio.AbstractEventLoop,
        description: DrafterDescription,
    ) -> None:
        """Have the drafter open the stream."""
        super().__init__()
        self.description = description
        self._memory = mmap.mmap(-1, SHARED_BYTES)
        self.feature_writer = SharedWriter(self._memory)
        self._service, self._loop = service, loop
        # Used on the drafter's loop only; None before the stream is open and after its end.
        self._session: Session | None = None
        self._ended = False
        self._post(self._open)

    def send(self, request: pb.DraftRequest) -> None:
        """Have the drafter answer a request; see `DraftTransport.send`."""
        if self._ended:
            raise TransportError("the draft stream has ended")
        self._post(self._answer, request)

    def close(self) -> None:
        """End the stream."""
        self._ended = True
        self._post(self._close)

    def _post(self, function: Callable[..., None], *arguments: pb.DraftRequest) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _open(self) -> None:
        try:
            self._session = self._service.open(self._memory)
        except ServiceError as error:
            self._break(error)

    def _answer(self, request: pb.DraftRequest) -> None:
        # Requests still under way on a stream that broke or was closed are dropped.
        if self._session is None or self._ended:
            return
        try:
            self._responses.put(self._service.answer(self._session, request))
        except ServiceError as error:
            self._break(error)

    def _break(self, error: ServiceError) -> None:
        self._ended = True
        self._close()
        self._responses.put(TransportError(error.message))

    def _close(self) -> None:
        if self._session is not None:
            self._service.close(self._session)
            self._session = None


class LocalLink:
    """Opens a stream to the drafter of this process, and another where one broke."""

    def __init__(
        self,
        connect: Callable[[], LocalTransport | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the first stream by `connect`, which returns None once nothing drafts any more."""
        self._connect, self._clock = connect, clock
        self._backoff = Backoff(RECONNECTING)
        self._opens_from = 0.0
        self._transport = connect()

    def current(self) -> DraftTransport | None:
        """Return the newest stream, or None while there is none."""
        if self._transport is None and self._clock() >= self._opens_from:
            self._transport = self._connect()
        return self._transport

    def lost(self, transport: DraftTransport) -> None:
        """Close a broken stream; another follows, after a pause if this one gave no response."""
        transport.close()
        if self._transport is None or transport is not self._transport:
            return
        if self._transport.answered:
            self._backoff.reset()
        else:
            self._opens_from = self._clock() + self._backoff.pause_seconds()
        self._transport = None

    def close(self) -> None:
        """End the stream."""
        if self._transport is not None:
            self._transport.close()
