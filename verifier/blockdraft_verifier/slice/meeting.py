"""The meeting of a slice's processes: followers call, the leader lets them in.

JAX brings them together first, for its own sake. A follower then introduces itself with a token
that only the slice knows, its number, and a digest of what it runs: processes that differ in flags
or target would compute different things.
"""

import contextlib
import hmac
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Collection, Generator

from blockdraft_verifier.slice.channel import (
    PATIENCE_SECONDS,
    FollowerChannel,
    FollowerLostError,
    LeaderChannel,
    LeaderLostError,
)

TOKEN_BYTES = DIGEST_BYTES = 32
_HELLO = struct.Struct(f"<{TOKEN_BYTES}s{DIGEST_BYTES}sI")
_ACCEPTED, _REFUSED = b"\x01", b"\x00"


class SliceMismatchError(ValueError):
    """The processes of a slice were started with different flags or targets."""


class LeaderSocket:
    """The leader's socket, on all interfaces, for followers that know its token."""

    def __init__(self) -> None:
        """Bind a free port."""
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        self.port: int = self._socket.getsockname()[1]
        self.token = secrets.token_bytes(TOKEN_BYTES)

    def accept(
        self,
        num_followers: int,
        digest: bytes,
        timeout_seconds: float,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> LeaderChannel:
        """Wait for processes 1 to `num_followers`, all of the same digest, and stop listening."""
        missing = {*range(1, num_followers + 1)}
        followers: dict[int, socket.socket] = {}
        calls = self._calls(time.monotonic() + timeout_seconds)
        with contextlib.closing(calls), contextlib.ExitStack() as closing:
            for caller in calls:
                closing.enter_context(caller)
                process_id = self._greet(caller, missing, digest)
                if process_id is None:
                    caller.close()
                    continue
                followers[process_id] = caller
                missing.remove(process_id)
                if not missing:
                    closing.pop_all()
                    return LeaderChannel(followers, patience_seconds)
        raise FollowerLostError(
            f"processes {sorted(missing)} of the slice did not come in {timeout_seconds:g} s"
        )

    def _calls(self, deadline: float) -> Generator[socket.socket]:
        """Yield every connection that has sent as much as a follower does."""
        silent: set[socket.socket] = set()
        with self._socket, selectors.DefaultSelector() as callers:
            callers.register(self._socket, selectors.EVENT_READ)
            try:
                while heard := callers.select(max(0.0, deadline - time.monotonic())):
                    for caller in [key.fileobj for key, _ in heard]:
                        assert isinstance(caller, socket.socket)
                        if caller is self._socket:
                            connection, _ = caller.accept()
                            silent.add(connection)
                            # Read once all is there, so that a slow caller holds up no other.
                            connection.setsockopt(
                                socket.SOL_SOCKET, socket.SO_RCVLOWAT, _HELLO.size
                            )
                            callers.register(connection, selectors.EVENT_READ)
                        else:
                            callers.unregister(caller)
                            silent.remove(caller)
                            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                            yield caller
            finally:
                for connection in silent:
                    connection.close()

    def _greet(self, caller: socket.socket, missing: Collection[int], digest: bytes) -> int | None:
        """Return the process id of a follower that is missing; None for a stranger."""
        try:
            token, theirs, process_id = _HELLO.unpack(caller.recv(_HELLO.size))
            if not hmac.compare_digest(token, self.token) or process_id not in missing:
                return None
            caller.sendall(_ACCEPTED if theirs == digest else _REFUSED)
        except (OSError, struct.error):
            return None
        if theirs != digest:
            raise _mismatch(process_id)
        return int(process_id)


def connect(
    address: tuple[str, int], token: bytes, process_id: int, digest: bytes, timeout_seconds: float
) -> FollowerChannel:
    """Return the connection of a follower to the leader, which must be listening."""
    with contextlib.ExitStack() as closing:
        try:
            connection = socket.create_connection(address, timeout=timeout_seconds)
            closing.callback(connection.close)
            connection.sendall(_HELLO.pack(token, digest, process_id))
            response = connection.recv(len(_ACCEPTED))
            if not response:
                raise ConnectionResetError("turned away")
        except OSError as error:
            raise LeaderLostError(f"no leader at {address[0]}:{address[1]}: {error}") from error
        if response != _ACCEPTED:
            raise _mismatch(process_id)
        closing.pop_all()
    return FollowerChannel(connection)


def _mismatch(process_id: int) -> SliceMismatchError:
    return SliceMismatchError(
        f"process {process_id} of the slice has other flags, another target, or other devices or "
        "versions than process 0"
    )
