"""One child process: start it, forward its output, check its health, stop it."""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from blockdraft_server.supervise import die_with_parent
from blockdraft_server.supervise.plan import ChildSpec

_LAUNCHER = Path(die_with_parent.__file__)
_KEPT_LINES = 20
_CHECK_SECONDS = 0.2
_CHECK_TIMEOUT_SECONDS = 5.0
_PROBE_SECONDS = 1.0
# A single health check may stay unanswered because the machine was suspended.
_PROBES = 2
# So many times as long may a process be silent whose main thread gets turns: on a machine with ten
# busy processes for each core, all takes ten times as long.
_SLOW_FACTOR = 12
_LAST_WORDS_SECONDS = 1.0
_LONGEST_LINE = 1 << 20
# Bytes kept for a reader that is slow; the output of all processes in minutes.
_MOST_UNREAD_BYTES = 4 << 20
_FULL_SECONDS = 0.01


class Sink(Protocol):
    """Takes bytes; returns how many of them it took, or None."""

    def write(self, data: bytes, /) -> int | None:
        """Take bytes."""

    def flush(self) -> None:
        """Pass on the bytes taken so far."""


class Output:
    """The output of all processes, written to a sink by a thread.

    A reader that is slow, or has gone, must hold up neither the supervisor nor, by full pipes, its
    children: unread output beyond a few megabytes is dropped. A stream, as far as `logging` and
    `print` need one.
    """

    def __init__(self, sink: Sink | None = None) -> None:
        """Write to a sink; None for stderr."""
        self._sink = sink or terminal()
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._pass_on, name="output", daemon=True).start()

    def write(self, text: str | bytes) -> None:
        """Queue the text to be written soon, as far as it fits."""
        data = text.encode() if isinstance(text, str) else text
        with self._changed:
            if data and self._unread_bytes + len(data) <= _MOST_UNREAD_BYTES:
                self._unread.append(data)
                self._unread_bytes += len(data)
                self._changed.notify_all()

    def flush(self) -> None:
        """Do nothing: all is written as soon as it can be."""

    def drain(self) -> None:
        """Wait until all is written, if the reader takes it within moments."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unread, _LAST_WORDS_SECONDS)

    def _pass_on(self) -> None:
        gone = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unread)
                data = self._unread[0]
            rest = data
            try:
                while rest and not gone:
                    count = self._sink.write(rest) or 0
                    rest = rest[count:]
                    if not count:  # by a stream that others have made non-blocking
                        time.sleep(_FULL_SECONDS)
                self._sink.flush()
            except (OSError, ValueError):
                gone = True
            with self._changed:
                self._unread.popleft()
                self._unread_bytes -= len(data)
                self._changed.notify_all()


def terminal() -> BinaryIO:
    """Return stderr, unbuffered: a buffer locked while its reader sleeps would not let us end."""
    return open(2, "wb", buffering=0, closefd=False)


class ProcessorTime(NamedTuple):
    """The processor time and turns that a thread has had."""

    seconds: float
    turns: int

    @classmethod
    def of_main_thread(cls, pid: int) -> "ProcessorTime":
        """Return the time and turns of a process's main thread; zeros if unknown."""
        try:
            ran, _, turns = map(int, Path(f"/proc/{pid}/schedstat").read_text().split())
        except (OSError, ValueError):  # not Linux, or just ended
            return cls(0.0, 0)
        return cls(ran / 1e9, turns)


class Child:
    """A running process. It dies with its parent, also when the parent is killed (on Linux).

    Attributes:
        spec: Specification of the process.
        pid: Process id.
        ready_since: When it became ready, by the monotonic clock; None before.
    """

    def __init__(
        self, spec: ChildSpec, process: asyncio.subprocess.Process, output: Output
    ) -> None:
        """Take over `process`; use `start`."""
        self.spec = spec
        self.pid = process.pid
        self.ready_since: float | None = None
        self._process = process
        self._output = output
        self._lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._forwarding = asyncio.ensure_future(self._forward())

    @classmethod
    async def start(cls, spec: ChildSpec, output: Output) -> "Child":
        """Start the process; `OSError` if it cannot be started."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-IS", str(_LAUNCHER), str(os.getpid()), *spec.command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=spec.environment,
            # A Ctrl-C in the terminal must reach the supervisor only, which stops in order.
            start_new_session=True,
        )
        return cls(spec, process, output)

    @property
    def last_lines(self) -> list[str]:
        """The newest lines of output."""
        return [line.decode(errors="replace") for line in self._lines]

    async def exited(self) -> int:
        """Wait for the end; return the exit status, negative for a signal."""
        status = await self._process.wait()
        # Its last output is still in the pipe. A grandchild may hold the pipe open for ever.
        await asyncio.wait({self._forwarding}, timeout=_LAST_WORDS_SECONDS)
        return status

    async def ready(self) -> None:
        """Return as soon as the process reports SERVING."""
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                status = await self._health(_CHECK_TIMEOUT_SECONDS)
                if status == health_pb2.HealthCheckResponse.SERVING:
                    return
            await asyncio.sleep(_CHECK_SECONDS)

    async def hung(self, patience_seconds: float) -> None:
        """Return once the process hangs.

        A process hangs if it leaves health checks unanswered while its main thread has no turn on
        a processor for `patience_seconds`, or has so much processor time, or in any case for
        `_SLOW_FACTOR` times as long. So a slow process is not taken to hang. Any response will do,
        and so will a closed port: that process is about to end.
        """
        missed = 0
        silence: tuple[float, ProcessorTime] | None = None
        while missed < _PROBES:
            asked_at, had = time.monotonic(), ProcessorTime.of_main_thread(self.pid)
            if await self._responds(patience_seconds / _PROBES):
                missed, silence = 0, None
                await asyncio.sleep(_PROBE_SECONDS)
                continue
            silent_from, had_before = silence = silence or (asked_at, had)
            now, has_had = time.monotonic(), ProcessorTime.of_main_thread(self.pid)
            missed = missed + 1 if has_had == had else 0
            loops = has_had.seconds - had_before.seconds >= patience_seconds
            if loops or now - silent_from >= _SLOW_FACTOR * patience_seconds:
                return

    async def _responds(self, seconds: float) -> bool:
        """Return whether a health check ends in time, with a response or an error."""
        try:
            await self._health(seconds)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
        return True

    async def _health(self, seconds: float) -> int:
        """Ask for the health, and wait for so many seconds."""
        assert self.spec.health_address is not None
        # A connection of its own: gRPC prints lines about one that ends with the process.
        async with grpc.aio.insecure_channel(
            self.spec.health_address, options=(("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            response = await stub.Check(  # type: ignore[attr-defined]  # its stubs lack it
                health_pb2.HealthCheckRequest(), timeout=seconds
            )
            return int(response.status)

    async def stop(self) -> None:
        """Ask the process to stop, kill it if it does not, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(self.spec.stop_seconds):
                await self.exited()
        except TimeoutError:
            self.kill()
            await self.exited()

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _forward(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        partial = b""
        # Read in chunks: a line may exceed what a stream reader is willing to buffer. Written in
        # lines: several children share the output.
        while chunk := await stream.read(65536):
            *lines, partial = (partial + chunk).split(b"\n")
            if len(partial) > _LONGEST_LINE:
                lines, partial = [*lines, partial], b""
            self._tell(lines)
        self._tell([partial] if partial else [])

    def _tell(self, lines: list[bytes]) -> None:
        self._lines.extend(lines)
        self._output.write(b"".join(line + b"\n" for line in lines))
