"""Draft streams within a process: requests and responses are passed as they are."""

import asyncio
import mmap
import queue
from collections.abc import Callable

from blockdraft_drafter.service import DrafterService
from blockdraft_drafter.session import Session
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.status import ServiceError
from blockdraft_verifier.drafting.feature_writers import (
    SHARED_BYTES,
    MessageWriter,
    SharedWriter,
)
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import DraftTransport, TransportError


class LocalTransport:
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
        self.description = description
        self._memory = mmap.mmap(-1, SHARED_BYTES)
        self.feature_writer: MessageWriter = SharedWriter(self._memory)
        self._service, self._loop = service, loop
        self._responses: queue.SimpleQueue[pb.DraftResponse | TransportError] = queue.SimpleQueue()
        # Of the drafter's loop; None before the stream is open and after its end.
        self._session: Session | None = None
        self._ended = False
        self._post(self._open)

    def send(self, request: pb.DraftRequest) -> None:
        """Have a step answered; see `DraftTransport.send`."""
        if self._ended:
            raise TransportError("the draft stream has ended")
        self._post(self._answer, request)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        """Return the next response; see `DraftTransport.receive`."""
        try:
            response = self._responses.get(timeout=max(0.0, timeout_seconds))
        except queue.Empty:
            return None
        if isinstance(response, TransportError):
            raise response
        self.feature_writer.answered(response.step_id)
        return response

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
        # Of a stream that broke or was closed, what is still under way is dropped.
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

    def __init__(self, connect: Callable[[], DraftTransport | None]) -> None:
        """Open the first stream by `connect`, which returns None once nothing drafts any more."""
        self._connect = connect
        self._transport = connect()

    def current(self) -> DraftTransport | None:
        """Return the newest stream, or None once nothing drafts any more."""
        return self._transport

    def lost(self, transport: DraftTransport) -> None:
        """Close a broken stream and open another."""
        transport.close()
        if transport is self._transport:
            self._transport = self._connect()

    def close(self) -> None:
        """End the stream."""
        if self._transport is not None:
            self._transport.close()
