"""Keeps a set of child processes running, and stops them in order."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, BinaryIO

from blockdraft_server.supervise.child import Child, ChildSpec
from blockdraft_server.supervise.restart import RestartPolicy, RestartTracker

logger = logging.getLogger(__name__)

# With this status `blockdraft` says that its command line, or a file it names, is wrong.
USAGE_STATUS = 2
# The kernel takes a killed process away within moments, unless a device holds it.
_KILLED_SECONDS = 5.0


class ChildFailedError(Exception):
    """A child died too often before it was ever ready.

    Attributes:
        name: The child.
        last_lines: What it said last.
    """

    def __init__(self, name: str, status: int, last_lines: Sequence[str]) -> None:
        """Describe the child and its last exit status."""
        cause = "cannot start" if status == USAGE_STATUS else "keeps dying before it is ready"
        super().__init__(f"{name} {cause} (exit status {status})")
        self.name = name
        self.last_lines = tuple(last_lines)


class Supervisor:
    """Starts children, restarts what dies, stops them role by role in the order given."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        policy: RestartPolicy | None = None,
        sink: BinaryIO | None = None,
        hang_seconds: float = 10.0,
        start_seconds: float = 3600.0,
    ) -> None:
        """Remember what to run.

        Args:
            specs: The children, in the order in which they are stopped, neighbours of one role
                together; they start together.
            policy: When to restart; None for the default.
            sink: Where the children's output goes; None for stderr.
            hang_seconds: How long a child that was ready may leave probes of its health
                unanswered before it is killed.
            start_seconds: How long a child may take to get ready before it is killed.
        """
        self._specs = tuple(specs)
        self._policy = policy or RestartPolicy()
        self._sink = sink
        self._hang_seconds = hang_seconds
        self._start_seconds = start_seconds
        self._children: dict[str, Child] = {}
        self._serving: set[str] = set()
        self._was_ready = {spec.name: asyncio.Event() for spec in specs if spec.health_address}
        self._stopping = asyncio.Event()

    @property
    def process_ids(self) -> dict[str, int]:
        """The running children's process ids, by name."""
        return {name: child.pid for name, child in self._children.items()}

    @property
    def serving(self) -> frozenset[str]:
        """Names of the running children that have become ready."""
        return frozenset(self._serving)

    async def run(
        self,
        stop_requested: asyncio.Event,
        on_ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Run until `stop_requested`; no child runs any more when this returns or raises.

        Args:
            stop_requested: Set by the caller to stop in order.
            on_ready: Called once, when every child has been ready.

        Raises:
            ChildFailedError: If a child keeps dying before it is ready.
        """
        keepers = {
            spec.name: asyncio.create_task(self._keep(spec), name=spec.name) for spec in self._specs
        }
        announcing = asyncio.create_task(self._announce(on_ready))
        stopping = asyncio.create_task(stop_requested.wait())
        try:
            needed = [keepers[name] for name in self._was_ready]
            await asyncio.wait({stopping, *needed}, return_when=asyncio.FIRST_COMPLETED)
            for keeper in needed:
                if keeper.done():
                    keeper.result()
        finally:
            self._stopping.set()
            announcing.cancel()
            try:
                for _, specs in itertools.groupby(self._specs, lambda each: each.role or each.name):
                    await asyncio.gather(
                        *(self._stop(spec.name, keepers[spec.name]) for spec in specs)
                    )
            finally:
                # Reached with children left only when the stopping itself was cancelled.
                for child in self._children.values():
                    child.kill()
                await asyncio.wait(keepers.values(), timeout=_KILLED_SECONDS)
                tasks: list[asyncio.Task[Any]] = [announcing, stopping, *keepers.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _stop(self, name: str, keeper: asyncio.Task[None]) -> None:
        if name in self._children:
            logger.info("stopping %s", name)
            await self._children[name].stop()
        await asyncio.wait({keeper})

    async def _keep(self, spec: ChildSpec) -> None:
        tracker = RestartTracker(self._policy)
        run = self._run_once if spec.health_address else self._run_unwatched
        while not self._stopping.is_set():
            try:
                status, ready_since, last_lines = await run(spec)
            except OSError as error:
                # Too many processes or open files just now: as if it had died at once.
                status, ready_since, last_lines = 1, None, [f"cannot be started: {error}"]
                logger.warning("%s cannot be started: %s", spec.name, error)
            if self._stopping.is_set():
                return
            if status == USAGE_STATUS and not spec.health_address:
                logger.error("%s cannot start; everything else goes on without it", spec.name)
                return
            # A command line that is wrong now will be wrong the next time.
            hopeless = status == USAGE_STATUS and ready_since is None
            pause = None if hopeless else tracker.died(time.monotonic(), ready_since)
            if pause is None:
                raise ChildFailedError(spec.name, status, last_lines)
            logger.warning(
                "%s ended with status %d; starting it again in %.1f s", spec.name, status, pause
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def _run_once(self, spec: ChildSpec) -> tuple[int, float | None, list[str]]:
        child = await Child.start(spec, self._sink)
        self._children[spec.name] = child
        if self._stopping.is_set():
            # The stop passed this child by while it was being started.
            child.kill()
        ready = asyncio.create_task(child.ready())
        exited = asyncio.create_task(child.exited())
        hung = None
        ready_since = None
        try:
            await asyncio.wait(
                {ready, exited},
                timeout=self._start_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not ready.done() and not exited.done():
                logger.error(
                    "%s is not ready after %g s: killing it", spec.name, self._start_seconds
                )
                child.kill()
            elif not exited.done():
                ready.result()
                ready_since = time.monotonic()
                self._serving.add(spec.name)
                self._was_ready[spec.name].set()
                # Not earlier: who loads or compiles may have no time to answer.
                hung = asyncio.create_task(child.hung(self._hang_seconds))
                await asyncio.wait({hung, exited}, return_when=asyncio.FIRST_COMPLETED)
                # One that is stopping has a time limit of its own.
                if not exited.done() and not self._stopping.is_set():
                    hung.result()
                    logger.error(
                        "%s has not answered for %g s: killing it", spec.name, self._hang_seconds
                    )
                    child.kill()
            status = await exited
        finally:
            tasks = [task for task in (ready, exited, hung) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._serving.discard(spec.name)
        del self._children[spec.name]
        return status, ready_since, child.last_lines

    async def _run_unwatched(self, spec: ChildSpec) -> tuple[int, float | None, list[str]]:
        """Run a child that nobody waits for; it is taken for ready as soon as it runs."""
        child = await Child.start(spec, self._sink)
        self._children[spec.name] = child
        if self._stopping.is_set():
            child.kill()
        started = time.monotonic()
        status = await child.exited()
        del self._children[spec.name]
        return status, started, child.last_lines

    async def _announce(self, on_ready: Callable[[], Awaitable[None]] | None) -> None:
        for event in self._was_ready.values():
            await event.wait()
        if on_ready is not None:
            await on_ready()
