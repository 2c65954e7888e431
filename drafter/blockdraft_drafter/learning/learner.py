"""Learning in a drafter that serves: it records samples, loads better weights, and rolls back.

Everything slow happens on threads: training samples are written, the folder of versions is polled,
and weights are loaded there. Between two steps the event loop only puts them in place. Whatever
goes wrong is logged and counted, and the weights that draft stay.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from blockdraft_drafter.learning.comparison import SequenceGain, acceptance_length
from blockdraft_drafter.learning.probation import Probation
from blockdraft_drafter.learning.recorder import GrowingSample, Recorder
from blockdraft_drafter.learning.rehearsal import rehearse
from blockdraft_drafter.learning.versions import Version, VersionError, VersionStore
from blockdraft_protos.v1 import drafter_pb2

if TYPE_CHECKING:
    # A drafter that does not compute with JAX, or does not learn, must not load it for this.
    from blockdraft_drafter.compiled.runner import CompiledMethod, PreparedWeights

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0


class ServingLearner:
    """The learner beside a method that serves, for all streams; `serving` is the version used."""

    def __init__(
        self,
        method: "CompiledMethod",
        store: VersionStore,
        version: Version,
        recorder: Recorder,
        target: str,
        load: Callable[[int], Any],
    ) -> None:
        """Draft with `version`, which the method has loaded; `load` gives another, on a thread.

        `target` is the target's name on the command line.
        """
        self._method, self._store, self._load = method, store, load
        self._target = target
        self._recorder, self._metrics = recorder, recorder.metrics
        spec = method.spec
        # Why the version that drafts must be rolled back.
        self._too_bad: str | None = None
        self._serve(version.number, spec.fingerprint, trained=spec.trained)
        # Nothing is known of the version before the one that a process begins with.
        self._probation = Probation()
        # Versions that could not be marked as rejected either.
        self._refused: set[int] = set()

    def stream(self) -> "StreamLearner":
        """Return the learner of one stream."""
        return StreamLearner(self, self._recorder)

    def verified(self, version: int, gained: int, *, own_context: bool) -> None:
        """Count a verified draft of a version and the tokens gained, the target's own included.

        `own_context` says that this version filled the whole draft KV cache.
        """
        self._metrics.verified(version, gained, own_context=own_context)

    def ended(self, version: int, gain: SequenceGain) -> None:
        """Add a sequence that one version drafted for from beginning to end."""
        if version == self.serving.number:
            self._too_bad = self._probation.add(gain) or self._too_bad

    def state(self) -> dict[str, object]:
        """Return the version that drafts and its τ, as values that JSON can hold."""
        gains = self._probation.new
        return {
            "version": self.serving.number,
            "fingerprint": self.serving.fingerprint,
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
        self._recorder.close()

    # On a thread.

    def _poll(self) -> "tuple[int, PreparedWeights] | None":
        """Do all of `poll` but the swap; return another version if that shall serve."""
        if self._too_bad is not None:
            reason, self._too_bad = self._too_bad, None
            self._roll_back(reason)
        version = self._store.current()
        if version is None or version.number in (self.serving.number, *self._refused):
            return None
        return self._prepare(version.number)

    def _roll_back(self, reason: str) -> None:
        number = self.serving.number
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
            if not self._store.read(number).loads:
                rehearse(self._store.path(number), self._target)
                with contextlib.suppress(OSError):  # then it is loaded there again at a start
                    self._store.mark_loaded(number)
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
        before = self.serving.number
        self._method.swap(weights)
        self._serve(number, weights.fingerprint, trained=weights.trained)
        # A version that is rolled back to is compared with nothing: it was good before.
        self._probation = Probation(self._probation.new if number > before else ())
        self._too_bad = None
        self._metrics.changed("swapped")
        logger.info("drafting with version %d instead of %d", number, before)

    def _serve(self, number: int, fingerprint: str, *, trained: bool) -> None:
        self.serving = drafter_pb2.DrafterVersion(
            number=number, fingerprint=fingerprint, trained=trained
        )
        self._metrics.serves(number)


@dataclass(slots=True)
class _Watched:
    """A sequence: its sample, and the tokens gained by its verified drafts."""

    version: int
    sample: GrowingSample
    changed: bool = False
    gained: int = 0
    steps: int = 0
    drafted_by: int = 0
    draft: tuple[int, ...] = ()


class StreamLearner:
    """Learns from the sequences of one stream. Not thread-safe: called on the event loop."""

    def __init__(self, learner: "ServingLearner", recorder: Recorder) -> None:
        """Begin without sequences."""
        self._learner = learner
        self._recorder = recorder
        self._watched: dict[int, _Watched] = {}
        self._signed: drafter_pb2.DrafterVersion | None = None

    def stepped(
        self,
        message: drafter_pb2.SequenceDraft,
        features: NDArray[Any],
        draft: Sequence[int],
    ) -> None:
        """Add a sequence's part of a finished step: the features, and the draft.

        The draft is empty if nothing was drafted.
        """
        serving = self._learner.serving.number
        if message.context_start == 0:
            self._begin(message, serving)
        watched = self._watched.get(message.sequence_id)
        if watched is None:
            return
        watched.sample.append(message.context_start, features, message.token_ids)
        if len(features):
            self._compare(watched, message)
        watched.changed |= watched.version != serving
        if draft:
            watched.draft, watched.drafted_by = tuple(draft), serving

    def released(self, sequence_id: int) -> None:
        """Keep the sample of a sequence whose draft KV cache is released."""
        watched = self._watched.pop(sequence_id, None)
        if watched is None:
            return
        watched.sample.end()
        if watched.steps and not watched.changed:
            self._learner.ended(watched.version, SequenceGain(watched.gained, watched.steps))

    def sign(self, response: drafter_pb2.DraftResponse) -> None:
        """Add the version that drafts to a response, if the verifier does not know it yet."""
        if self._learner.serving != self._signed:
            self._signed = self._learner.serving
            response.version.CopyFrom(self._signed)

    def close(self) -> None:
        """End all sequences with the stream."""
        for watched in self._watched.values():
            watched.sample.end()
        self._watched.clear()

    def _begin(self, message: drafter_pb2.SequenceDraft, serving: int) -> None:
        """Begin a draft KV cache; a sample of the same sequence from before is dropped."""
        before = self._watched.get(message.sequence_id)
        if before is not None:
            before.sample.drop()
        allowed = None
        if message.HasField("sample"):
            allowed = (message.sample.completion_start, message.sample.temperature)
        sample = self._recorder.begin(message.request_id, allowed)
        self._watched[message.sequence_id] = _Watched(serving, sample)

    def _compare(self, watched: _Watched, message: drafter_pb2.SequenceDraft) -> None:
        draft, watched.draft = watched.draft, ()
        if not draft:
            return
        # The first of the message's tokens is the anchor that was drafted from.
        committed = (*message.token_ids[1:], message.anchor_token_id)
        pairs = zip(draft, committed, strict=False)
        accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        # A draft that came too late was not verified, even if its tokens were right.
        if accepted >= message.feature_rows:
            return
        watched.gained += 1 + accepted
        watched.steps += 1
        self._learner.verified(watched.drafted_by, 1 + accepted, own_context=not watched.changed)
