"""The messages of one sequence that its verifier has sent and its caller has not taken yet."""

import asyncio
from collections import deque
from collections.abc import Hashable

from blockdraft_protos.v1 import verifier_pb2

# A caller's messages stay far below the 4 MiB that gRPC takes unless told otherwise, also with 20
# alternatives for each token.
MAX_MERGED_TOKENS = 2048
# Messages that one server sends to all callers together, about half of what a core can. Beyond
# that, gRPC's cost for each message would slow down all of them: fewer, longer ones are faster.
MESSAGES_PER_SECOND = 8000


class MessagePace:
    """The pace of the readers' messages: all together stay below `MESSAGES_PER_SECOND`.

    Attributes:
        readers: Readers that have begun to get messages; one whose sequence waits gets none.
    """

    def __init__(self) -> None:
        """Begin without readers."""
        self.readers = 0

    @property
    def seconds(self) -> float:
        """Time between two messages of a reader."""
        return self.readers / MESSAGES_PER_SECOND


class Feed:
    """The messages of one sequence, for one reader.

    Messages that arrive while the reader is busy, or before its turn, are merged. So a late reader
    finds one message of several steps, not one of each, and the feed never holds more than the
    completion. The end of a completion does not wait for a turn.

    Attributes:
        gained: Tokens that have come so far.
        queue: Identifies the queue in which the sequence waits for a slot.
    """

    def __init__(self, pace: MessagePace, queue: Hashable = None) -> None:
        """Start empty, on the running event loop; `close` must follow. All feeds share a pace."""
        self.gained = 0
        self.queue = queue
        self._loop = asyncio.get_running_loop()
        self._pace = pace
        self._begun = False
        self._waiting: deque[verifier_pb2.SequenceTokens] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._turn = 0.0
        self._reader: asyncio.Future[None] | None = None

    def put(self, message: verifier_pb2.SequenceTokens) -> None:
        """Add a message."""
        if not self._begun:
            self._begun = True
            self._pace.readers += 1
        self.gained += len(message.token_ids)
        waiting = self._waiting
        if waiting and len(waiting[-1].token_ids) + len(message.token_ids) <= MAX_MERGED_TOKENS:
            waiting[-1].MergeFrom(message)
        else:
            # The message is a part of one for all sequences, all of which it would keep in memory.
            copy = verifier_pb2.SequenceTokens()
            copy.CopyFrom(message)
            waiting.append(copy)
        if message.finish_reason:
            self._ended = True
            self._wake()
        elif self._loop.time() >= self._turn:
            self._wake()

    def fail(self, error: Exception) -> None:
        """End the feed: `take` raises `error` once all earlier messages were taken."""
        if self._error is None:
            self._error = error
            self._ended = True
            self._wake()

    async def take(self) -> verifier_pb2.SequenceTokens:
        """Wait for a message and return it, merged with those that came with it.

        Raises the error that `fail` was given.
        """
        if not self._ended and (early := self._turn - self._loop.time()) > 0:
            turn = self._loop.call_later(early, self._wake)
            try:
                await self._woken()
            finally:
                turn.cancel()
        while not self._waiting:
            if self._error is not None:
                raise self._error
            await self._woken()
        self._turn = self._loop.time() + self._pace.seconds
        return self._waiting.popleft()

    def close(self) -> None:
        """Give up the turn; the feed is no longer read."""
        if self._begun:
            self._begun = False
            self._pace.readers -= 1

    async def _woken(self) -> None:
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
