"""Learning in a drafter that serves: it records, takes better weights over, and goes back.

Everything slow happens on threads: recordings are written, the folder of versions is looked at, and
weights are loaded there. Between two steps the event loop only puts them in place. Whatever goes
wrong is logged and counted, and the weights that draft stay.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from blockdraft_drafter.learning import trials
from blockdraft_drafter.learning.journal import Journal
from blockdraft_drafter.learning.recorder import Recorder
from blockdraft_drafter.learning.service_tau import WINDOW, Ended, Probation, estimate
from blockdraft_drafter.learning.stream import Serving, StreamLearner
from blockdraft_drafter.learning.trials import Trial
from blockdraft_drafter.learning.versions import Version, VersionError, VersionStore

if TYPE_CHECKING:
    # A drafter that does not compute with JAX, or does not learn, must not load it for this.
    from blockdraft_drafter.compiled.runner import CompiledMethod, PreparedWeights

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


@runtime_checkable
class LearnerCounts(Protocol):
    """Where a learner counts; called on the event loop."""

    def verified(self, version: int, gained: int, *, own_context: bool) -> None:
        """Count a verified proposal; see `Observer.verified`."""

    def changed(self, kind: str) -> None:
        """Count what became of a version: "swapped", "rolled_back" or "refused"."""

    def serves(self, serving: Serving) -> None:
        """Publish the version that drafts now."""

    def learned(self, journal: Journal) -> None:
        """Publish what the trainer says of itself."""


class _RefusedError(Exception):
    """A version cannot serve."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A version that shall serve, ready to draft."""

    version: Version
    weights: "PreparedWeights"
    trial: Trial


class Learner:
    """What a drafter process learns, all streams together; an `Observer`.

    Attributes:
        serving: The version that drafts now.
    """

    def __init__(
        self,
        method: "CompiledMethod",
        store: VersionStore,
        version: Version,
        recorder: Recorder,
        load: Callable[[int], Any],
        counts: LearnerCounts,
        directory: Path,
    ) -> None:
        """Draft with `version`, which the method has loaded.

        Args:
            method: What drafts.
            store: The versions.
            version: The one that drafts.
            recorder: Records what may be recorded.
            load: Returns the drafter of a version; called on a thread.
            counts: Where to count.
            directory: Where the trainer keeps its journal.
        """
        self._method = method
        self._store = store
        self._recorder = recorder
        self._load = load
        self._counts = counts
        self._directory = directory
        self.serving = Serving(version.number, method.spec.fingerprint, method.spec.trained)
        self._ended: dict[int, deque[Ended]] = {version.number: deque(maxlen=WINDOW)}
        # Nothing is known of the version before the one that a process begins with.
        self._probation = Probation(())
        self._too_bad: str | None = None
        # Versions that could not be marked as rejected either.
        self._refused: set[int] = set()
        self._trial = Trial()
        # Of the version that drafts: verified since it does, and whether it is known to serve.
        self._proposals, self._confirmed = 0, False
        counts.serves(self.serving)

    def stream(self) -> StreamLearner:
        """Return what learns from one stream."""
        return StreamLearner(self, self._recorder.stream())

    def verified(self, version: int, gained: int, *, own_context: bool) -> None:
        """Count a verified proposal; see `Observer.verified`."""
        self._counts.verified(version, gained, own_context=own_context)
        self._proposals += version == self.serving.number

    def ended(self, version: int, ended: Ended) -> None:
        """Take in a sequence that has ended; see `Observer.ended`."""
        if version != self.serving.number:
            return
        self._ended[version].append(ended)
        confidence = self._probation.add(ended)
        if confidence is not None and self._too_bad is None:
            new, old = estimate(self._probation.new), estimate(self._probation.old)
            if new is not None and old is not None:
                self._too_bad = (
                    f"τ in service fell from {old.mean:.3f} to {new.mean:.3f}, "
                    f"confidence {confidence:.4f}"
                )

    def state(self) -> dict[str, object]:
        """Return what drafts and how well, as values that JSON can hold."""
        tau = estimate(self._ended[self.serving.number])
        return {
            "version": self.serving.number,
            "fingerprint": self.serving.fingerprint,
            "sequences": len(self._ended[self.serving.number]),
            "tau": None if tau is None else tau.mean,
            "on_probation": not self._probation.over,
        }

    async def run(self) -> None:
        """Look for another version now and then, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except Exception:
                # Whatever it is, it must not end the drafting.
                logger.exception("learning failed; drafting goes on")

    async def look(self) -> None:
        """Go back if the version that drafts is too bad; take over the one that shall serve.

        What the trainer says of itself is published, too: it has no endpoint of its own.
        """
        if self._too_bad is not None:
            reason, self._too_bad = self._too_bad, None
            await self._roll_back(reason)
        if self._proposals >= trials.ENOUGH_PROPOSALS and not self._confirmed:
            self._confirmed = True
            await asyncio.to_thread(self._confirm)
        journal = await asyncio.to_thread(self._read_journal)
        if journal is not None:
            self._counts.learned(journal)
        try:
            prepared = await asyncio.to_thread(self._prepare)
        except _RefusedError:
            self._counts.changed("refused")
            return
        if prepared is not None:
            trial, self._trial = self._trial, prepared.trial
            self._swap(prepared.version, prepared.weights)
            await asyncio.to_thread(trial.end)

    def close(self) -> None:
        """Write what was recorded."""
        self._trial.end()
        self._recorder.close()

    async def _roll_back(self, reason: str) -> None:
        number = self.serving.number
        try:
            current = await asyncio.to_thread(self._store.current)
            if current is None or current.number != number:
                return
            await asyncio.to_thread(self._store.roll_back, reason)
        except (OSError, VersionError) as error:
            logger.error("version %d should go back (%s) but cannot: %s", number, reason, error)
            return
        logger.warning("version %d goes back: %s", number, reason)
        self._counts.changed("rolled_back")

    def _read_journal(self) -> Journal | None:
        """Return what the trainer says of itself; None if that is unreadable. Runs on a thread."""
        try:
            return Journal.load(self._directory)
        except FileNotFoundError:
            return Journal()
        except (OSError, ValueError) as error:
            logger.debug("the trainer's journal cannot be read: %s", error)
            return None

    def _confirm(self) -> None:
        """Say that the version that drafts has stood its trial. Runs on a thread."""
        try:
            trials.confirm(self._store.path(self.serving.number))
        except OSError as error:
            logger.warning("version %d cannot be confirmed: %s", self.serving.number, error)
            return
        self._trial.end()

    def _prepare(self) -> _Prepared | None:
        """Return another version that shall serve, if there is one. Runs on a thread.

        Raises:
            _RefusedError: If it cannot serve.
        """
        version = self._store.current()
        if version is None or version.number in (self.serving.number, *self._refused):
            return None
        started = time.perf_counter()
        try:
            prepared = self._tried(version)
        except (ValueError, OSError, RuntimeError) as error:
            # RuntimeError: the device may have no room for it.
            reason = " ".join(str(error).split())
            logger.error("version %d is refused: %s", version.number, reason)
            try:
                self._store.reject(version.number, reason)
                trials.forget(self._store.path(version.number))
            except (OSError, VersionError) as again:
                self._refused.add(version.number)
                logger.error("version %d cannot be marked: %s", version.number, again)
            raise _RefusedError from error
        logger.info("version %d is loaded (%.1f s)", version.number, time.perf_counter() - started)
        return prepared

    def _tried(self, version: Version) -> _Prepared:
        """Return a version, ready; if loading it kills this process, the next one will know."""
        trial = trials.begin(self._store.path(version.number))
        try:
            weights = self._method.prepare(self._load(version.number))
        except BaseException:
            trial.end()
            raise
        return _Prepared(version, weights, trial)

    def _swap(self, version: Version, prepared: "PreparedWeights") -> None:
        before = self.serving
        self._method.swap(prepared)
        self.serving = Serving(version.number, prepared.fingerprint, prepared.trained)
        old = tuple(self._ended[before.number])
        known = self._ended.get(version.number, deque(maxlen=WINDOW))
        self._ended = {before.number: self._ended[before.number], version.number: known}
        # One that is gone back to is compared with nothing: it was good before.
        self._probation = Probation(old if version.number > before.number else ())
        self._proposals, self._confirmed = 0, False
        self._counts.serves(self.serving)
        self._counts.changed("swapped")
        logger.info("drafting with version %d instead of %d", version.number, before.number)
