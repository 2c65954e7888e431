"""Keeps a set of child processes running, and stops them in order."""

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from blockdraft_runtime.channel import Backoff, BackoffPolicy
from blockdraft_server.supervise.child import Child, Output, Sink
from blockdraft_server.supervise.plan import HANG_SECONDS, USAGE_STATUS, ChildSpec

logger = logging.getLogger(__name__)

_FAILED_STATUS = 1
# The kernel removes a killed process within moments, unless a device holds it.
_KILLED_SECONDS = 5.0
RESTARTING = BackoffPolicy(initial_seconds=0.5, max_seconds=30.0)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Rules for the restart of a child after its death."""

    backoff: BackoffPolicy = RESTARTING  # pauses before the restarts
    # So many deaths within `window_seconds`, without the child having been ready in between, are
    # final.
    max_deaths: int = 5
    # See `max_deaths`. A child that was ready for longer than this before it died starts again with
    # the first pause.
    window_seconds: float = 60.0


class RestartTracker:
    """The deaths of one child."""

    def __init__(self, policy: RestartPolicy, draw: Callable[[], float] = random.random) -> None:
        """Start with a child that never died; see `Backoff` for `draw`."""
        self._policy = policy
        self._backoff = Backoff(policy.backoff, draw)
        self._early_deaths: list[float] = []

    def died(self, now: float, ready_since: float | None) -> float | None:
        """Note a death; return the pause before the restart, None to give up.

        `ready_since` is when the child had become ready, by the clock of `now`; None if it never
        did.
        """
        policy = self._policy
        if ready_since is None:
            recent = [death for death in self._early_deaths if now - death < policy.window_seconds]
            self._early_deaths = [*recent, now]
            if len(self._early_deaths) >= policy.max_deaths:
                return None
        else:
            self._early_deaths = []
            if now - ready_since > policy.window_seconds:
                self._backoff.reset()
        return self._backoff.pause_seconds()


class ChildFailedError(Exception):
    """A child died too often before it was ever ready.

    Attributes:
        status: Its last exit status.
        last_lines: The last lines of its output.
    """

    def __init__(self, name: str, status: int, last_lines: Sequence[str]) -> None:
        """Describe the child and its last exit status."""
        cause = "cannot start" if status == USAGE_STATUS else "keeps dying before it is ready"
        super().__init__(f"{name} {cause} (exit status {status})")
        self.status = status
        self.last_lines = tuple(last_lines)


class Supervisor:
    """Starts children, restarts those that die, stops them role by role in the order given.

    Attributes:
        children: The running children, by name.
        output: The output of all of them.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        policy: RestartPolicy | None = None,
        sink: Sink | None = None,
        hang_seconds: float = HANG_SECONDS,
        # Downloads and compilation included; an interrupted download is resumed.
        start_seconds: float = 3600.0,
    ) -> None:
        """Set the children to run.

        `specs` are the children in the order in which they are stopped, neighbours of one role
        together; they start together. Their output goes to `sink`; None for stderr. A child that
        takes longer than `start_seconds` to get ready, or then leaves health checks unanswered for
        `hang_seconds`, is killed.
        """
        self.children: dict[str, Child] = {}
        self.output = Output(sink)
        self._specs = tuple(specs)
        self._policy = policy or RestartPolicy()
        self._hang_seconds = hang_seconds
        self._start_seconds = start_seconds
        self._was_ready = {spec.name: asyncio.Event() for spec in specs if spec.health_address}
        self._stopping = asyncio.Event()

    def was_ready(self, name: str) -> bool:
        """Whether a child has been ready."""
        return name in self._was_ready and self._was_ready[name].is_set()

    async def run(
        self,
        stop_requested: asyncio.Event,
        on_ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Run until `stop_requested`; no child runs any more when this returns or raises.

        `on_ready` is called once, when every child has been ready. `ChildFailedError` if a child
        keeps dying before it is ready.
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
                for _, specs in itertools.groupby(self._specs, lambda spec: spec.role or spec.name):
                    await asyncio.gather(
                        *(self._stop(spec.name, keepers[spec.name]) for spec in specs)
                    )
            finally:
                # Children are left here only if the stopping itself was cancelled.
                for child in self.children.values():
                    child.kill()
                await asyncio.wait(keepers.values(), timeout=_KILLED_SECONDS)
                await _cancel(announcing, stopping, *keepers.values())
                self.output.drain()

    async def _stop(self, name: str, keeper: asyncio.Task[None]) -> None:
        if name in self.children:
            logger.info("stopping %s", name)
            await self.children[name].stop()
        await asyncio.wait({keeper})

    async def _keep(self, spec: ChildSpec) -> None:
        tracker = RestartTracker(self._policy)
        while not self._stopping.is_set():
            status, ready_since, last_lines = await self._live(spec)
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

    async def _live(self, spec: ChildSpec) -> tuple[int, float | None, list[str]]:
        """Run a child once; return its exit status, since when it was ready, and its last lines."""
        # A child that nothing waits for counts as ready at once, even if it cannot be started.
        ready_since = None if spec.health_address else time.monotonic()
        try:
            child = await Child.start(spec, self.output)
        except OSError as error:
            # Too many processes, or open files, just now: as if it had died at once.
            logger.warning("%s cannot be started: %s", spec.name, error)
            return _FAILED_STATUS, ready_since, [f"cannot be started: {error}"]
        child.ready_since = ready_since
        self.children[spec.name] = child
        if self._stopping.is_set():
            # The stop passed this child by while it was being started.
            child.kill()
        exited = asyncio.create_task(child.exited())
        try:
            if spec.health_address:
                await self._watch(child, exited)
            status = await exited
        finally:
            await _cancel(exited)
        del self.children[spec.name]
        return status, child.ready_since, child.last_lines

    async def _watch(self, child: Child, exited: asyncio.Task[int]) -> None:
        """Kill a child that does not get ready, or hangs."""
        name = child.spec.name
        if await _before(exited, child.ready(), self._start_seconds):
            child.ready_since = time.monotonic()
            self._was_ready[name].set()
            # Not earlier: a child that loads or compiles may have no time to respond.
            hung = await _before(exited, child.hung(self._hang_seconds))
            # A child that is stopping has its own time limit.
            if hung and not self._stopping.is_set():
                logger.error("%s has not responded for %g s: killing it", name, self._hang_seconds)
                child.kill()
        elif not exited.done():
            logger.error("%s is not ready after %g s: killing it", name, self._start_seconds)
            child.kill()

    async def _announce(self, on_ready: Callable[[], Awaitable[None]] | None) -> None:
        for event in self._was_ready.values():
            await event.wait()
        if on_ready is not None:
            await on_ready()


async def _before(
    exited: asyncio.Task[int], coroutine: Coroutine[Any, Any, None], seconds: float | None = None
) -> bool:
    """Return whether a coroutine ends before its child does, and within so many seconds."""
    task = asyncio.create_task(coroutine)
    try:
        await asyncio.wait({task, exited}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if exited.done() or not task.done():
            return False
        task.result()
        return True
    finally:
        await _cancel(task)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
