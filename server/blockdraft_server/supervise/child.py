"""One child process: start it, forward what it says, ask whether it serves, stop it."""

import asyncio
import collections
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from blockdraft_server.supervise import die_with_parent

_LAUNCHER = Path(die_with_parent.__file__)
_KEPT_LINES = 20
_CHECK_SECONDS = 0.2
_PROBE_SECONDS = 1.0
# One unanswered probe may be that of a machine that slept.
_PROBES = 2
_LAST_WORDS_SECONDS = 1.0
_LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start.

    Attributes:
        name: Name for messages.
        command: The program and its arguments.
        health_address: gRPC address, plaintext, that reports SERVING once the child is ready; None
            for a child that serves nobody: nothing waits for it, and its deaths end nothing.
        stop_seconds: How long it may take to stop before it is killed.
        environment: Its environment variables; None for those of this process.
        role: Children of one role are stopped together; None for a role of its own.
    """

    name: str
    command: tuple[str, ...]
    health_address: str | None
    stop_seconds: float = 40.0
    environment: Mapping[str, str] | None = None
    role: str | None = None


class Child:
    """A running process. It dies with its parent, also when the parent is killed (on Linux)."""

    def __init__(self, spec: ChildSpec, process: asyncio.subprocess.Process, sink: BinaryIO):
        """Take over `process`; use `start`."""
        self.spec = spec
        self._process = process
        self._sink = sink
        self._lines: collections.deque[bytes] = collections.deque(maxlen=_KEPT_LINES)
        self._forwarding = asyncio.ensure_future(self._forward())

    @classmethod
    async def start(cls, spec: ChildSpec, sink: BinaryIO | None = None) -> "Child":
        """Start the process.

        Args:
            spec: What to start.
            sink: Where its output goes; None for this process's stderr.

        Raises:
            OSError: If the interpreter cannot be started.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-IS",
            str(_LAUNCHER),
            str(os.getpid()),
            *spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=spec.environment,
            # A Ctrl-C in the terminal must reach the supervisor only, which stops in order.
            start_new_session=True,
        )
        return cls(spec, process, sink or sys.stderr.buffer)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def last_lines(self) -> list[str]:
        """The newest lines of output."""
        return [line.decode(errors="replace") for line in self._lines]

    async def exited(self) -> int:
        """Wait for the end; return the exit status, negative for a signal."""
        status = await self._process.wait()
        # What it said last is in the pipe still. A grandchild may hold the pipe open for ever.
        await asyncio.wait({self._forwarding}, timeout=_LAST_WORDS_SECONDS)
        return status

    async def ready(self) -> None:
        """Return as soon as the process reports SERVING."""
        async with self._health() as check:
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    if await check(5.0) == health_pb2.HealthCheckResponse.SERVING:
                        return
                await asyncio.sleep(_CHECK_SECONDS)

    async def hung(self, patience_seconds: float) -> None:
        """Return once the process has left probes of its health unanswered for so long.

        Any answer will do, and so will a closed port: that is a process on its way out.
        """
        missed = 0
        while missed < _PROBES:
            try:
                # A connection of its own: gRPC prints lines about one that ends with the process.
                async with self._health() as check:
                    await check(patience_seconds / _PROBES)
                missed = 0
            except grpc.aio.AioRpcError as error:
                late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                missed = missed + 1 if late else 0
            if not missed:
                await asyncio.sleep(_PROBE_SECONDS)

    @contextlib.asynccontextmanager
    async def _health(self) -> AsyncIterator[Callable[[float], Awaitable[int]]]:
        """Give what asks the process for its health, waiting for so many seconds."""
        if self.spec.health_address is None:
            raise ValueError(f"{self.spec.name} tells nobody of its health")
        async with grpc.aio.insecure_channel(
            self.spec.health_address,
            options=(
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.use_local_subchannel_pool", 1),
            ),
        ) as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            async def check(seconds: float) -> int:
                response = await stub.Check(  # type: ignore[attr-defined]  # stubs lack it
                    health_pb2.HealthCheckRequest(), timeout=seconds
                )
                return int(response.status)

            yield check

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
        if stream is None:
            return
        partial = b""
        # Read in chunks: a line may exceed what a stream reader is willing to buffer. Written in
        # lines: several children share the sink.
        while chunk := await stream.read(65536):
            *lines, partial = (partial + chunk).split(b"\n")
            if len(partial) > _LONGEST_LINE:
                lines, partial = [*lines, partial], b""
            self._pass_on(lines)
        if partial:
            self._pass_on([partial])

    def _pass_on(self, lines: Sequence[bytes]) -> None:
        self._lines.extend(lines)
        self._sink.write(b"".join(line + b"\n" for line in lines))
        self._sink.flush()
