"""Frames from the first process of a slice, the leader, to the others, the followers.

Plain TCP: a frame of 40 KB is there 0.04 ms later. JAX's own means take a hundred times that on
the same machine (2.9 ms by its key-value store, 3.3 ms by `broadcast_one_to_all`), as long as a
step, and a broadcast would hold the devices while the service is idle. The end of a connection
tells at once that a process died.

A frame is its length in 4 bytes, then its bytes. Followers send nothing but acknowledgements.
"""

import contextlib
import logging
import queue
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_ACKNOWLEDGEMENT = b"\x01"
# A follower reads all the time; one that does not for so long is as good as dead.
_SEND_SECONDS = 30.0


class FollowerLostError(RuntimeError):
    """A follower has ended or does not answer: the leader cannot go on."""


class LeaderLostError(RuntimeError):
    """The leader has ended without a word: the follower cannot go on."""


class LeaderChannel:
    """The leader's connections to all followers; one thread at a time may send."""

    def __init__(self, followers: Mapping[int, socket.socket]) -> None:
        """Take over the connections of the followers, by process id."""
        self._followers = dict(followers)
        self._acknowledged: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._lost: int | None = None
        self._closed = False
        self._on_loss: Callable[[], None] = lambda: None
        for process_id, connection in self._followers.items():
            connection.settimeout(_SEND_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(
                target=self._listen,
                args=(process_id, connection),
                name=f"follower-{process_id}",
                daemon=True,
            ).start()

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on some thread, when a follower is lost."""
        self._on_loss = callback
        if self._lost is not None:
            callback()

    def send(self, *parts: bytes) -> None:
        """Send one frame to every follower.

        Raises:
            FollowerLostError: If a follower is gone.
        """
        self._refuse_if_lost()
        frame = _frame(parts)
        for process_id, connection in self._followers.items():
            try:
                connection.sendall(frame)
            except OSError:
                self._lose(process_id)
        self._refuse_if_lost()

    def wait_acknowledged(self) -> None:
        """Wait until every follower has acknowledged once more.

        Raises:
            FollowerLostError: If a follower is gone.
        """
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
                    connection.sendall(_frame(parts))
                # A follower may have something to say still; cut off, it might miss that frame.
                connection.shutdown(socket.SHUT_WR)

    def _listen(self, process_id: int, connection: socket.socket) -> None:
        while True:
            try:
                said = connection.recv(1)
            except TimeoutError:
                continue
            except OSError:
                said = b""
            if not said:
                break
            self._acknowledged.put(True)
        self._lose(process_id)
        connection.close()

    def _lose(self, process_id: int) -> None:
        if self._closed or self._lost is not None:
            return
        self._lost = process_id
        logger.error("process %d of the slice is gone", process_id)
        self._acknowledged.put(False)
        self._on_loss()

    def _refuse_if_lost(self) -> None:
        if self._lost is not None:
            raise FollowerLostError(f"process {self._lost} of the slice is gone")


class FollowerChannel:
    """A follower's connection to its leader."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over the connection."""
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection = connection

    def receive(self) -> memoryview:
        """Wait for the next frame.

        Raises:
            LeaderLostError: If the leader is gone.
        """
        try:
            (length,) = _LENGTH.unpack(receive_exactly(self._connection, _LENGTH.size))
            return receive_exactly(self._connection, length)
        except OSError as error:
            raise LeaderLostError("the leader of the slice is gone") from error

    def acknowledge(self) -> None:
        """Tell the leader that what it asked for is done.

        Raises:
            LeaderLostError: If the leader is gone.
        """
        try:
            self._connection.sendall(_ACKNOWLEDGEMENT)
        except OSError as error:
            raise LeaderLostError("the leader of the slice is gone") from error

    def close(self) -> None:
        """End the connection; a `receive` on another thread then raises."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _frame(parts: Sequence[bytes]) -> bytes:
    return b"".join((_LENGTH.pack(sum(len(part) for part in parts)), *parts))


def receive_exactly(connection: socket.socket, count: int) -> memoryview:
    """Return the next `count` bytes.

    Raises:
        OSError: If the stream ends before.
    """
    data = memoryview(bytearray(count))
    received = 0
    while received < count:
        length = connection.recv_into(data[received:])
        if length == 0:
            raise ConnectionResetError("the connection has ended")
        received += length
    return data
