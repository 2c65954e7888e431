"""Frames from the first process of a slice, the leader, to the others, the followers.

Plain TCP: a frame of 40 KB is there 0.15 ms later, one of 600 KB 0.4 ms. No library that was tried
is as fast (ADR 0025). JAX's own means take as long as a step, and a broadcast would hold the
devices while the service is idle (ADR 0013).

A frame is its length in 4 bytes, then its bytes. Followers say two words of a byte each: that they
have taken a frame, and that what a frame asked for is done.
"""

import contextlib
import logging
import queue
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

# A follower takes each step before it runs it, so it is never late by more than a step. One that is
# late by so much holds up the devices of all.
PATIENCE_SECONDS = 10.0
MAX_FRAME_BYTES = 1 << 26
_LENGTH = struct.Struct("<I")
_TAKEN, _DONE = b"T", b"D"
# More than a follower sends before the leader reads it, also after a pause of this process.
_MANY_WORDS = 4096
_LOOK_SECONDS = 0.5


class FollowerLostError(RuntimeError):
    """A follower has ended or takes no steps: the leader cannot go on."""


class LeaderLostError(RuntimeError):
    """The leader has ended without a word: the follower cannot go on."""


class LeaderChannel:
    """The leader's connections to all followers; one thread at a time may send."""

    def __init__(
        self, followers: Mapping[int, socket.socket], patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Take over the connections of the followers."""
        self._followers = dict(followers)
        self._patience_seconds = patience_seconds
        # By follower, when the frames were sent that it has not taken yet.
        self._sent: Mapping[int, deque[float]] = {process_id: deque() for process_id in followers}
        self._acknowledged: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._lost: str | None = None
        self._closed = False
        self._on_loss: Callable[[], None] = lambda: None
        for connection in self._followers.values():
            _prepare(connection)
        threading.Thread(target=self._watch, name="followers", daemon=True).start()

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on some thread, when a follower is lost."""
        self._on_loss = callback
        if self._lost is not None:
            callback()

    def send(self, *parts: bytes) -> None:
        """Send a frame to every follower, waiting where one has too much; raise if one is lost."""
        self._refuse_if_lost()
        frame = _frame(*parts)
        for process_id, connection in self._followers.items():
            self._sent[process_id].append(time.monotonic())
            try:
                connection.sendall(frame)
            except OSError:
                self._lose(process_id, "is gone")
        self._refuse_if_lost()

    def wait_acknowledged(self) -> None:
        """Wait until every follower has acknowledged once more, or raise `FollowerLostError`."""
        for _ in self._followers:
            self._refuse_if_lost()
            if not self._acknowledged.get():
                self._refuse_if_lost()

    def close(self, *parts: bytes) -> None:
        """Send a last frame, if any, to the followers that are left, and say no more."""
        self._closed = True
        for connection in self._followers.values():
            with contextlib.suppress(OSError):
                if parts:
                    connection.sendall(_frame(*parts))
                # A follower may have something to say still; cut off, it might miss that frame.
                connection.shutdown(socket.SHUT_WR)

    def _watch(self) -> None:
        """Hear what the followers say until the last one has ended."""
        with selectors.DefaultSelector() as selector:
            for process_id, connection in self._followers.items():
                selector.register(connection, selectors.EVENT_READ, process_id)
            while selector.get_map():
                # Before looking: after a pause of this process all that came meanwhile is heard.
                now = time.monotonic()
                for key, _ in selector.select(_LOOK_SECONDS):
                    if not self._hear(key.data):
                        selector.unregister(key.fileobj)
                        self._lose(key.data, "is gone")
                        self._followers[key.data].close()
                self._look_for_late(now)

    def _hear(self, process_id: int) -> bool:
        """Take in what a follower has sent; return whether there may be more."""
        try:
            words = self._followers[process_id].recv(_MANY_WORDS)
        except OSError:
            return False
        for _ in range(words.count(_DONE)):
            self._acknowledged.put(True)
        for _ in range(min(words.count(_TAKEN), len(self._sent[process_id]))):
            self._sent[process_id].popleft()
        return bool(words)

    def _look_for_late(self, now: float) -> None:
        latest = now - self._patience_seconds
        for process_id, sent in self._sent.items():
            if sent and sent[0] < latest:
                self._lose(process_id, f"has taken no step for {self._patience_seconds:g} s")
                # A `send` that waits for it ends with an error.
                with contextlib.suppress(OSError):
                    self._followers[process_id].shutdown(socket.SHUT_RDWR)

    def _lose(self, process_id: int, fault: str) -> None:
        if self._closed or self._lost is not None:
            return
        self._lost = f"process {process_id} of the slice {fault}"
        logger.error("%s", self._lost)
        self._acknowledged.put(False)
        self._on_loss()

    def _refuse_if_lost(self) -> None:
        if self._lost is not None:
            raise FollowerLostError(self._lost)


class FollowerChannel:
    """A follower's connection to its leader; `LeaderLostError` once that is gone."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over the connection."""
        _prepare(connection)
        self._connection = connection

    def receive(self) -> memoryview:
        """Take the next frame, when it comes."""
        try:
            (length,) = _LENGTH.unpack(_receive_exactly(self._connection, _LENGTH.size))
            if length > MAX_FRAME_BYTES:
                raise OSError(f"a frame of {length} bytes is too long")
            frame = _receive_exactly(self._connection, length)
        except OSError as error:
            raise LeaderLostError("the leader of the slice is gone") from error
        # After its last frame the leader may be gone in peace.
        with contextlib.suppress(OSError):
            self._connection.sendall(_TAKEN)
        return frame

    def acknowledge(self) -> None:
        """Tell the leader that what it asked for is done."""
        try:
            self._connection.sendall(_DONE)
        except OSError as error:
            raise LeaderLostError("the leader of the slice is gone") from error

    def close(self) -> None:
        """End the connection; a `receive` on another thread then raises."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _frame(*parts: bytes) -> bytes:
    length = sum(len(part) for part in parts)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes is too long")
    return b"".join((_LENGTH.pack(length), *parts))


def _receive_exactly(connection: socket.socket, count: int) -> memoryview:
    """Return the next `count` bytes, or raise `OSError` if the stream ends before."""
    data = memoryview(bytearray(count))
    received = 0
    while received < count:
        length = connection.recv_into(data[received:])
        if length == 0:
            raise ConnectionResetError("the connection has ended")
        received += length
    return data
