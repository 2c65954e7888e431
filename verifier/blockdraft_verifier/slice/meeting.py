"""How the processes of a slice find each other: followers call, the leader lets them in.

JAX brings them together first, for its own sake. A follower then introduces itself with a token
that only the slice knows, its number, and a digest of what it runs: processes that differ in flags
or target would compute different things.
"""

import contextlib
import hmac
import secrets
import socket
import struct
import time

import jax

from blockdraft_runtime.settings.slice import SliceSettings
from blockdraft_verifier.slice.channel import (
    FollowerChannel,
    FollowerLostError,
    LeaderChannel,
    LeaderLostError,
    receive_exactly,
)

TOKEN_BYTES = DIGEST_BYTES = 32
_HELLO = struct.Struct(f"<{TOKEN_BYTES}s{DIGEST_BYTES}sI")
_ACCEPTED, _REFUSED = b"\x01", b"\x00"
# A stranger that connects and says nothing must not hold up the others for longer.
_HELLO_SECONDS = 5.0
# The devices of a dead process hold up those of all others: better to start again soon.
_HEARTBEAT_SECONDS = 10
_SHUTDOWN_SECONDS = 10


class SliceMismatchError(ValueError):
    """The processes of a slice were started with different flags or targets."""


def start_slice(settings: SliceSettings) -> None:
    """Wait for the other processes; must come before JAX has touched a device.

    JAX ends this process when another one dies.

    Raises:
        RuntimeError: If they do not come within JAX's five minutes.
    """
    # It would take SIGTERM for itself, which asks us to drain.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        settings.coordinator,
        settings.num_processes,
        settings.process_id,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )


class Listener:
    """Where the leader waits for its followers, on all interfaces.

    Attributes:
        port: The port.
        token: What followers must know.
    """

    def __init__(self) -> None:
        """Bind a free port."""
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        self.port: int = self._socket.getsockname()[1]
        self.token = secrets.token_bytes(TOKEN_BYTES)

    def accept(self, num_followers: int, digest: bytes, timeout_seconds: float) -> LeaderChannel:
        """Wait for processes 1 to `num_followers` and stop listening.

        Args:
            num_followers: How many there are.
            digest: What every process must run.
            timeout_seconds: How long to wait for all of them.

        Raises:
            FollowerLostError: If some do not come in time.
            SliceMismatchError: If one runs something else.
        """
        followers: dict[int, socket.socket] = {}
        deadline = time.monotonic() + timeout_seconds
        try:
            while len(followers) < num_followers:
                self._socket.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    connection, _ = self._socket.accept()
                except TimeoutError as error:
                    missing = sorted({*range(1, num_followers + 1)} - set(followers))
                    raise FollowerLostError(
                        f"processes {missing} of the slice did not come in {timeout_seconds:g} s"
                    ) from error
                with contextlib.ExitStack() as closing:
                    closing.callback(connection.close)
                    process_id = self._greet(connection, num_followers, digest)
                    if process_id is not None and process_id not in followers:
                        followers[process_id] = connection
                        closing.pop_all()
        except BaseException:
            for connection in followers.values():
                connection.close()
            raise
        finally:
            self._socket.close()
        return LeaderChannel(followers)

    def _greet(self, connection: socket.socket, num_followers: int, digest: bytes) -> int | None:
        """Return the process id of a follower; None for a stranger."""
        try:
            connection.settimeout(_HELLO_SECONDS)
            token, theirs, process_id = _HELLO.unpack(receive_exactly(connection, _HELLO.size))
            if not hmac.compare_digest(token, self.token) or not 1 <= process_id <= num_followers:
                return None
            connection.sendall(_ACCEPTED if theirs == digest else _REFUSED)
        except OSError:
            return None
        if theirs != digest:
            raise _mismatch(process_id)
        return int(process_id)


def connect(
    address: tuple[str, int], token: bytes, process_id: int, digest: bytes, timeout_seconds: float
) -> FollowerChannel:
    """Return the connection of a follower to the leader, which must be listening.

    Args:
        address: The leader's host and port.
        token: The leader's.
        process_id: This process, from 1 on.
        digest: What this process runs.
        timeout_seconds: How long to wait for an answer.

    Raises:
        LeaderLostError: If the leader cannot be reached or does not know the token.
        SliceMismatchError: If the leader runs something else.
    """
    with contextlib.ExitStack() as closing:
        try:
            connection = socket.create_connection(address, timeout=timeout_seconds)
            closing.callback(connection.close)
            connection.sendall(_HELLO.pack(token, digest, process_id))
            answer = receive_exactly(connection, 1)
        except OSError as error:
            raise LeaderLostError(f"no leader at {address[0]}:{address[1]}: {error}") from error
        if answer != _ACCEPTED:
            raise _mismatch(process_id)
        closing.pop_all()
    return FollowerChannel(connection)


def _mismatch(process_id: int) -> SliceMismatchError:
    return SliceMismatchError(
        f"process {process_id} of the slice has other flags, another target, or other devices or "
        "versions than process 0"
    )
