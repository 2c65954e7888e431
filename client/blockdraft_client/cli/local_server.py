"""`blockdraft serve` as a child process that never outlives its parent's `with` block."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from blockdraft_client.cli.output import CommandFailedError

# The same as `blockdraft serve`, but of this interpreter whatever PATH says.
SERVE_COMMAND = (sys.executable, "-m", "blockdraft", "serve")
STOP_SECONDS = 10.0
FORCED_STOP_SECONDS = 10.0
LOG_TAIL_LINES = 40
POLL_SECONDS = 0.25
# The beginning of the line that says that the server, and its drafter if any, are ready.
ANNOUNCEMENT = "blockdraft serves "


class LocalServer:
    """Server, verifier and drafter on a free loopback port, for as long as the `with` block."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Pass `arguments` to `blockdraft serve`."""
        self.address = f"127.0.0.1:{_free_port()}"
        self._command = (*SERVE_COMMAND, "--listen", self.address, *arguments)
        self._directory = tempfile.TemporaryDirectory(prefix="blockdraft-")
        self._log = Path(self._directory.name) / "serve.log"
        self._process: subprocess.Popen[bytes]  # once it is entered

    def __enter__(self) -> "LocalServer":
        """Start the processes; they load in the background."""
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches this process only, which then stops them all.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *error: object) -> None:
        """Ask the processes to stop; kill what is left."""
        try:
            # The second signal tells the supervisor to stop waiting for its children.
            for patience in (STOP_SECONDS, FORCED_STOP_SECONDS):
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience)
                    break
        finally:
            # Also reaches a supervisor that a second Ctrl-C left behind.
            _kill_group(self._process.pid)
            self._process.wait()
            self._directory.cleanup()

    @property
    def process_id(self) -> int:
        """Process id of the supervisor, the parent of the others."""
        return self._process.pid

    def wait_ready(self, timeout: float, on_progress: Callable[[str], None]) -> None:
        """Wait until it says that it serves: with its drafter attached, if it starts one.

        `on_progress` gets the last line of the processes' log now and then.

        `CommandFailedError`, with the last lines they logged, if they end or are not ready by then.
        """
        deadline = time.monotonic() + timeout
        while not self._has_announced():
            if self._process.poll() is not None:
                raise self._failure(f"the server ended with exit code {self._process.returncode}")
            if time.monotonic() > deadline:
                raise self._failure(f"the server was not ready within {timeout:g} s")
            on_progress("".join(self._last_lines(1)))
            time.sleep(POLL_SECONDS)

    def _has_announced(self) -> bool:
        return any(line.startswith(ANNOUNCEMENT) for line in self._last_lines(LOG_TAIL_LINES))

    def _failure(self, message: str) -> CommandFailedError:
        lines = self._last_lines(LOG_TAIL_LINES)
        return CommandFailedError("\n".join([f"{message}; its last words:", *lines]))

    def _last_lines(self, count: int) -> list[str]:
        return self._log.read_text("utf-8", errors="replace").splitlines()[-count:]


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that `with` blocks stop what they started."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
