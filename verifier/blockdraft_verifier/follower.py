"""A process of a slice that does not lead: load, then mirror the leader's steps."""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial

import grpc

from blockdraft_runtime.event_loop import Loading
from blockdraft_runtime.settings.verifier import VerifierSettings
from blockdraft_verifier.loading import load_target
from blockdraft_verifier.slice.mirror import StepFollower

logger = logging.getLogger(__name__)


class FollowerApp:
    """A follower; an `Application` of `blockdraft_runtime.process` that serves nothing but health.

    Attributes:
        loading: Loads the target.
        failed: Whether the leader was lost, or left before its end.
    """

    role = "verifier"
    internal = True
    service_names: Sequence[str] = ()

    def __init__(self, settings: VerifierSettings, stop_requested: asyncio.Event) -> None:
        """Load nothing yet.

        Args:
            settings: What to run; that of the leader.
            stop_requested: Set when the leader has stopped or is lost.
        """
        self._settings = settings
        self._stop_requested = stop_requested
        self._follower: StepFollower | None = None
        self._compiled = asyncio.Event()
        self._ended = asyncio.Event()
        self.loading = Loading()
        self.failed = False

    def register(self, server: grpc.aio.Server) -> None:
        """Serve nothing."""

    def inspect(self) -> Mapping[str, object]:
        """Say that this is a follower, and whether it takes part in steps yet."""
        return {"follows": True, "compiled": self._compiled.is_set()}

    async def start(self) -> None:
        """Load the target, find the leader, compile what it compiles."""
        loop = asyncio.get_running_loop()
        load = partial(load_target, self._settings)
        runner, _, _, follower = await self.loading.run(load)
        assert isinstance(follower, StepFollower)
        self._follower = follower

        def follow() -> None:
            try:
                follower.follow(runner, lambda: loop.call_soon_threadsafe(self._compiled.set))
            except Exception:
                logger.exception("cannot follow the leader any more")
                self.failed = True
            for event in (self._compiled, self._ended, self._stop_requested):
                loop.call_soon_threadsafe(event.set)

        threading.Thread(target=follow, name="follower", daemon=True).start()
        await self._compiled.wait()

    async def drain(self) -> None:
        """Go on until the leader has drained."""
        if self._follower is not None:
            try:
                async with asyncio.timeout(self._settings.process.drain_seconds):
                    await self._ended.wait()
            except TimeoutError:
                logger.warning("the leader goes on: leaving it")
                self.failed = True

    async def stop(self) -> None:
        """Leave the leader."""
        if self._follower is not None:
            self._follower.channel.close()
