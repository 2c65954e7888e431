"""Steps are compiled, timed and tested before they serve, or beside others for a late drafter."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.guest import InTurn
from blockdraft_verifier.device.step_runner import MeasuredSteps, StepRunner
from blockdraft_verifier.engine.guards import RecompilationGuard
from blockdraft_verifier.exactness import Exactness
from blockdraft_verifier.scheduling.pages import PageAllocator

logger = logging.getLogger(__name__)

# Pages that the self-test needs to have all rows of a step live.
LENT_PAGES = 256
_LEND_AGAIN_SECONDS = 0.2

SelfTest = Callable[[Any, Mapping[Bucket, float]], Exactness]
"""Compares the steps of a runner, which take so many seconds, and has it serve what is exact."""

Guest = Callable[[InTurn, Callable[[], Sequence[int]]], StepRunner]
"""Returns a runner that is warmed up beside another; see `GuestRunner`."""


class ReadySteps(NamedTuple):
    """Steps that may serve: compiled, timed and tested."""

    runner: StepRunner
    features: FeatureForm
    max_block: int
    measured: MeasuredSteps
    exactness: Exactness | None


def spawn(work: Callable[[], None]) -> None:
    """Run some work on a thread for which the process does not wait."""
    threading.Thread(target=work, name="preparation", daemon=True).start()


class Preparation:
    """Prepares one set of steps at a time; its methods are for the engine's thread.

    Attributes:
        under_way: Whether a guest prepares steps.
    """

    def __init__(
        self,
        self_test: SelfTest | None,
        guard: RecompilationGuard | None,
        guest: Guest | None,
        spawn: Callable[[Callable[[], None]], None],
        pages: PageAllocator,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        """Have nothing prepared.

        `post` has the engine's thread call a function before its next step, to which `pages`
        belong.
        """
        self._self_test, self._guard = self_test, guard
        self._guest, self._spawn = guest, spawn
        self._pages, self._post = pages, post
        self._lent: list[int] = []
        self._begun_for: tuple[FeatureForm, int] | None = None
        self.under_way = False

    def prepare(
        self,
        runner: StepRunner,
        features: FeatureForm,
        max_block: int,
        progress: Callable[[int, int], None] = lambda count, total: None,
    ) -> ReadySteps:
        """Compile, time and test the steps of a runner; `InexactError` if none may serve."""
        if self._guard is not None:
            self._guard.disarm()
        measured = runner.warm_up(features, max_block, progress)
        exactness = None
        if self._self_test is not None:
            started = time.perf_counter()
            exactness = self._self_test(runner, measured.seconds)
            logger.info("self-test of %.1f s", time.perf_counter() - started)
            exactness.log(measured.seconds)
            measured = measured.without(exactness.padded)
        if self._guard is not None:
            self._guard.arm()
        return ReadySteps(runner, features, max_block, measured, exactness)

    def begin(
        self, features: FeatureForm, max_block: int, use: Callable[[ReadySteps], None]
    ) -> bool:
        """Prepare steps beside those that serve, unless it is under way or the same has failed.

        `use` is called on the engine's thread. Returns whether it is possible at all.
        """
        if self._guest is None:
            return False
        if not self.under_way and self._begun_for != (features, max_block):
            self.under_way, self._begun_for = True, (features, max_block)
            logger.info("a drafter has come: compiling its steps beside those that serve")
            guest = self._guest(self._in_turn, self._borrow)
            self._spawn(lambda: self._prepare_guest(guest, features, max_block, use))
        return True

    def _prepare_guest(
        self,
        guest: StepRunner,
        features: FeatureForm,
        max_block: int,
        use: Callable[[ReadySteps], None],
    ) -> None:
        prepared, started = None, time.perf_counter()
        try:
            prepared = self.prepare(guest, features, max_block)
            logger.info("ready for the drafter after %.1f s", time.perf_counter() - started)
        except Exception:
            logger.exception("no drafting: there are no steps for the drafter")

        def end() -> None:
            self.under_way = False
            self._pages.release(self._lent)
            self._lent = []
            if prepared is not None:
                use(prepared)

        self._post(end)

    def _in_turn(self, work: Callable[[], Any]) -> Any:
        """Have the engine's thread do some work before its next step; return the result."""
        future: Future[Any] = Future()

        def turn() -> None:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self._post(turn)
        return future.result()

    def _borrow(self) -> list[int]:
        """Return pages that are lent until the preparation ends; wait until there are some."""

        def lend() -> list[int]:
            self._lent = self._pages.allocate(min(LENT_PAGES, self._pages.available // 2))
            return self._lent

        while not (pages := self._in_turn(lend)):
            time.sleep(_LEND_AGAIN_SECONDS)
        return list(pages)
