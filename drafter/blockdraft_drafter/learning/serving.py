"""The version that drafts: its replacement by a better one, and the return to the one before.

Everything slow happens on threads: the folder of versions is polled and weights are loaded there.
Between two steps the event loop only puts them in place. Whatever goes wrong is logged and counted,
and the weights that draft stay.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockdraft_drafter.learning.comparison import SequenceGain, acceptance_length
from blockdraft_drafter.learning.probation import Probation
from blockdraft_drafter.learning.recorder import Recorder
from blockdraft_drafter.learning.versions import Version, VersionError, VersionStore
from blockdraft_protos.v1 import drafter_pb2

if TYPE_CHECKING:
    # A drafter that does not compute with JAX, or does not learn, must not load it for this.
    from blockdraft_drafter.compiled.runner import CompiledMethod, PreparedWeights

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0


class ServingVersion:
    """The version with which a method drafts, for all streams; `message` describes it."""

    def __init__(
        self,
        method: "CompiledMethod",
        store: VersionStore,
        version: Version,
        recorder: Recorder,
        load: Callable[[int], Any],
    ) -> None:
        """Draft with `version`, which the method has loaded; `load` gives another, on a thread."""
        self._method, self._store, self._load = method, store, load
        self.recorder, self._metrics = recorder, recorder.metrics
        spec = method.spec
        self._serve(version.number, spec.fingerprint, trained=spec.trained)
        # Nothing is known of the version before the one that a process begins with.
        self._probation = Probation()
        # Versions that could not be marked as rejected either.
        self._refused: set[int] = set()

    def ended(self, version: int, gain: SequenceGain) -> None:
        """Add a sequence that one version drafted for from beginning to end."""
        if version == self.message.number:
            self._probation.add(gain)

    def state(self) -> dict[str, object]:
        """Return the version that drafts and its τ, as values that JSON can hold."""
        gains = self._probation.new
        return {
            "version": self.message.number,
            "fingerprint": self.message.fingerprint,
            "sequences": len(gains),
            "tau": acceptance_length(gains) if gains else None,
            "on_probation": not self._probation.over,
        }

    async def run(self) -> None:
        """Poll for another version, for ever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.poll()
            except Exception:
                # Whatever it is, it must not end the drafting.
                logger.exception("learning failed; drafting goes on")

    async def poll(self) -> None:
        """Roll back if the version that drafts is too bad, or load another."""
        prepared = await asyncio.to_thread(self._poll)
        if prepared is not None:
            self._swap(*prepared)

    def close(self) -> None:
        """Write the samples that wait."""
        self.recorder.close()

    # On a thread.

    def _poll(self) -> "tuple[int, PreparedWeights] | None":
        """Do all of `poll` but the swap; return another version if that shall serve."""
        reason = self._probation.evaluate()
        if reason is not None:
            self._roll_back(reason)
        version = self._store.current()
        if version is None or version.number in (self.message.number, *self._refused):
            return None
        return self._prepare(version.number)

    def _roll_back(self, reason: str) -> None:
        number = self.message.number
        try:
            current = self._store.current()
            if current is None or current.number != number:
                return
            self._store.roll_back(reason)
        except (OSError, VersionError) as error:
            logger.error("version %d cannot be rolled back (%s): %s", number, reason, error)
            return
        logger.warning("version %d is rolled back: %s", number, reason)
        self._metrics.changed("rolled_back")

    def _prepare(self, number: int) -> "tuple[int, PreparedWeights] | None":
        """Load and check a version; one that cannot serve is rejected."""
        started = time.perf_counter()
        try:
            weights = self._method.prepare(self._load(number))
        except (ValueError, OSError, RuntimeError) as error:
            # RuntimeError: the device may lack the memory.
            self._refuse(number, " ".join(str(error).split()))
            return None
        logger.info("version %d is loaded (%.1f s)", number, time.perf_counter() - started)
        return number, weights

    def _refuse(self, number: int, reason: str) -> None:
        logger.error("version %d is refused: %s", number, reason)
        self._metrics.changed("refused")
        try:
            self._store.reject(number, reason)
        except (OSError, VersionError) as error:
            self._refused.add(number)
            logger.error("version %d cannot be marked: %s", number, error)

    # On the event loop.

    def _swap(self, number: int, weights: "PreparedWeights") -> None:
        before = self.message.number
        self._method.swap(weights)
        self._serve(number, weights.fingerprint, trained=weights.trained)
        # A version that is rolled back to is compared with nothing: it was good before.
        self._probation = Probation(self._probation.new if number > before else ())
        self._metrics.changed("swapped")
        logger.info("drafting with version %d instead of %d", number, before)

    def _serve(self, number: int, fingerprint: str, *, trained: bool) -> None:
        self.message = drafter_pb2.DrafterVersion(
            number=number, fingerprint=fingerprint, trained=trained
        )
        self._metrics.serves(number)
