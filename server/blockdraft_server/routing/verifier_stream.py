"""The stream to one verifier, shared by all requests that it decodes."""

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from google.rpc.status_pb2 import Status

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_runtime.status import ServiceError, error_from_proto, received_error
from blockdraft_server.routing.feed import Feed, MessagePace

if TYPE_CHECKING:
    from blockdraft_protos.v1.verifier_pb2_grpc import VerifierServiceAsyncStub

logger = logging.getLogger(__name__)

# Status of a stream whose verifier crashes, restarts or shuts down. CANCELLED is among them because
# a verifier that drains cancels the streams that last longer; a cancellation of our own never
# arrives as a status. A sequence that its verifier ends with UNAVAILABLE is the same.
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
# Status with which gRPC itself ends a stream when the other side is gone: INTERNAL if a message was
# being written just then. An error of the verifier's own has a reason.
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)


# A sequence that has gained so many tokens on a process is taken to be harmless: one that kills it
# at a certain token is replayed up to there, and kills the next one within a few tokens.
TRIED_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Death:
    """A verifier seems to have died while it may have been running a sequence."""

    process: str  # the process that broke off; if it answers again, it had not died
    # Whether no other sequence can have been the cause: all others that may have been running have
    # gained `TRIED_TOKENS` there.
    alone: bool


class BrokenOffError(Exception):
    """A verifier broke off; it, or another one, may go on with the request.

    Attributes:
        death: The death that the sequence may have caused; None for an orderly end, and for a
            sequence that cannot have been running.
    """

    def __init__(self, message: str, death: Death | None = None) -> None:
        """Keep the parts."""
        super().__init__(message)
        self.death = death


class _EngineStoppedError(Exception):
    """The verifier's engine has failed, for all sequences."""


class VerifierStream:
    """One stream to a verifier.

    Attributes:
        open: Whether it takes requests; once it has ended, it never does again.
    """

    def __init__(
        self,
        stub: "VerifierServiceAsyncStub",
        description: verifier_pb2.VerifierServiceDescribeResponse,
        other_sequences: Callable[[], int],
        on_broken: Callable[[], None],
        on_tried: Callable[[], None],
    ) -> None:
        """Open a stream on the running event loop, to a verifier with this description.

        `other_sequences` returns the number of sequences of other servers at its last report.
        `on_broken` is called when the stream or a sequence of it broke off, `on_tried` when there
        is one untried sequence less.
        """
        self.open = True
        self._description = description
        self._other_sequences = other_sequences
        self._on_broken = on_broken
        self._on_tried = on_tried
        self._requests: asyncio.Queue[verifier_pb2.DecodeRequest] = asyncio.Queue()
        self._feeds: dict[int, Feed] = {}
        self._pace = MessagePace()
        self._numbers = itertools.count(1)
        self._call = stub.Decode()
        self._writing = asyncio.ensure_future(self._write())
        self._reading = asyncio.ensure_future(self._read())

    @property
    def untried(self) -> int:
        """Sequences that have not gained `TRIED_TOKENS` yet."""
        return sum(feed.gained < TRIED_TOKENS for feed in self._feeds.values())

    @contextlib.contextmanager
    def decode(self, request: verifier_pb2.SequenceRequest) -> Iterator[Feed]:
        """Begin a sequence; cancel it at the end of the context if it has not ended by then.

        The feed ends with a message that has a finish reason, or raises

        - `BrokenOffError`, if the stream broke or the verifier gave the sequence up,
        - `ServiceError`, if the verifier refused it.
        """
        # The replays of all tenants wait in one queue.
        tenant = None if request.replay else request.cache_salt
        number, feed = next(self._numbers), Feed(self._pace, (request.background, tenant))
        self._feeds[number] = feed
        self._requests.put_nowait(verifier_pb2.DecodeRequest(sequence_id=number, begin=request))
        try:
            yield feed
        finally:
            feed.close()
            self._on_tried()
            # Nothing else tells a verifier that the caller is gone.
            if self._feeds.pop(number, None) is not None and self.open:
                self._requests.put_nowait(
                    verifier_pb2.DecodeRequest(
                        sequence_id=number, cancel=verifier_pb2.CancelSequence()
                    )
                )

    async def close(self) -> None:
        """End the stream; the verifier cancels its sequences."""
        self._reading.cancel()
        # The reader does the same, if it had begun to read.
        self._writing.cancel()
        self._call.cancel()
        await asyncio.gather(self._reading, self._writing, return_exceptions=True)

    async def _write(self) -> None:
        # The error that ends the call is raised in the reader.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._call.write(await self._requests.get())

    async def _read(self) -> None:
        # An orderly end is that of a verifier that shuts down.
        error: Exception = BrokenOffError("the stream ended")
        died = False
        try:
            async for response in self._call:
                for message in response.sequences:
                    self._deliver(message)
        except grpc.aio.AioRpcError as failure:
            error = _stream_error(failure)
            # Without a reason, it was not the verifier that ended the stream.
            died = failure.code() in _LOST and not received_error(failure)
        except _EngineStoppedError as failure:
            error, died = BrokenOffError(str(failure)), True
        except Exception:
            logger.exception("the stream to the verifier failed")
        finally:
            self.open = False
            self._call.cancel()
            self._writing.cancel()
            if died:
                self._fail_dead(str(error))
            for feed in self._feeds.values():
                feed.fail(error)
            self._feeds.clear()
        # Not reached by `close`.
        self._on_broken()

    def _fail_dead(self, message: str) -> None:
        """Tell the feeds of sequences that may have been running when the verifier died."""
        running = self._may_be_running()
        untried = sum(feed.gained < TRIED_TOKENS for feed in running)
        untried += self._other_sequences()
        for feed in running:
            alone = untried <= (feed.gained < TRIED_TOKENS)
            feed.fail(BrokenOffError(message, Death(self._description.process, alone)))

    def _may_be_running(self) -> list[Feed]:
        """Return the feeds of sequences that the verifier may be running; the others surely wait.

        A sequence that has gained tokens has a slot and keeps it. The other slots may hold the
        first sequences of any queue: it is not known whose turn it was.
        """
        feeds = list(self._feeds.values())
        running = [feed for feed in feeds if feed.gained]
        places = max(self._description.max_sequences, 1) - len(running)
        begun: Counter[Hashable] = Counter()
        for feed in feeds:
            if not feed.gained and begun[feed.queue] < places:
                begun[feed.queue] += 1
                running.append(feed)
        return running

    def _deliver(self, message: verifier_pb2.SequenceTokens) -> None:
        number = message.sequence_id
        feed = self._feeds.get(number)
        if feed is None:
            return  # It was cancelled meanwhile.
        if message.token_ids:
            earlier = feed.gained
            feed.put(message)
            if earlier < TRIED_TOKENS <= feed.gained:
                self._on_tried()
        if message.HasField("error"):
            error = _sequence_error(message)
            # Only of an engine that failed: one that was stopped in order is not reported.
            if isinstance(error, _EngineStoppedError):
                raise error
            feed.fail(error)
            if isinstance(error, BrokenOffError):
                self._on_broken()
        elif not message.finish_reason:
            return
        # The sequence has ended: there is nothing left to cancel.
        del self._feeds[number]


def _stream_error(failure: grpc.aio.AioRpcError) -> Exception:
    """Return the error of each sequence of a failed stream."""
    received = received_error(failure)
    if failure.code() in _BROKEN or (received is None and failure.code() in _LOST):
        return BrokenOffError(f"{failure.code().name}: {failure.details()}")
    return received or _unexplained(failure.code().name, failure.details())


def _sequence_error(message: verifier_pb2.SequenceTokens) -> Exception:
    """Return the exception for the error of a sequence."""
    status = Status()
    message.error.Unpack(status)
    error = error_from_proto(status)
    if error is None:
        return _unexplained(f"code {status.code}", status.message)
    if error.reason == "ENGINE_STOPPED":
        return _EngineStoppedError(f"{error.reason}: {error.message}")
    if error.code in _BROKEN:
        return BrokenOffError(f"{error.reason}: {error.message}")
    return error


def _unexplained(code: str, details: str | None) -> ServiceError:
    logger.error("unexpected verifier error %s: %s", code, details)
    return ServiceError(
        grpc.StatusCode.INTERNAL,
        "VERIFIER_ERROR",
        f"the verifier failed with {code}",
        metadata={"code": code},
    )
