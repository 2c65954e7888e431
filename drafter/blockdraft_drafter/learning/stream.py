"""What one Draft stream tells: sequences to record, and how much of what was drafted was right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from blockdraft_drafter.learning.recorder import GrowingRecording, Recorder
from blockdraft_drafter.learning.service_tau import Ended, accepted_of
from blockdraft_protos.v1 import drafter_pb2


@runtime_checkable
class Observer(Protocol):
    """Hears what was accepted, of all streams; called on the event loop.

    Attributes:
        serving: The version that drafts now; its number is 0 of a drafter that does not learn.
    """

    serving: drafter_pb2.DrafterVersion

    def verified(self, version: int, gained: int, *, own_context: bool) -> None:
        """A proposal of a version was verified and brought tokens, the target's own included.

        The context was `own_context` if this version made all of it.
        """

    def ended(self, version: int, ended: Ended) -> None:
        """A sequence has ended that one version drafted for from beginning to end."""


@dataclass(slots=True)
class _Watched:
    """A sequence: what is recorded of it, and what became of its drafts."""

    version: int
    recording: GrowingRecording | None
    changed: bool = False
    gained: int = 0
    steps: int = 0
    drafted_by: int = 0
    proposal: tuple[int, ...] = ()


class StreamLearner:
    """Learns from the sequences of one stream. Not thread-safe: called on the event loop."""

    def __init__(self, observer: Observer, recorder: Recorder) -> None:
        """Learn of no sequence yet."""
        self._observer = observer
        self._recorder = recorder
        self._watched: dict[int, _Watched] = {}
        self._told: drafter_pb2.DrafterVersion | None = None

    def stepped(
        self,
        message: drafter_pb2.SequenceDraft,
        features: NDArray[Any],
        proposal: Sequence[int],
    ) -> None:
        """A sequence's part of a step is done: features were appended, and something drafted.

        The proposal is empty if nothing was.
        """
        serving = self._observer.serving.number
        if message.context_start == 0:
            self._begin(message, serving)
        watched = self._watched.get(message.sequence_id)
        if watched is None:
            return
        if watched.recording is not None:
            watched.recording.append(message.context_start, features, message.token_ids)
        if len(features):
            self._compare(watched, message)
        watched.changed |= watched.version != serving
        if proposal:
            watched.proposal, watched.drafted_by = tuple(proposal), serving

    def released(self, sequence_id: int) -> None:
        """A context is not needed any more: what was recorded of it is kept."""
        watched = self._watched.pop(sequence_id, None)
        if watched is None:
            return
        if watched.recording is not None:
            watched.recording.end()
        if watched.steps and not watched.changed:
            self._observer.ended(watched.version, Ended(watched.gained, watched.steps))

    def sign(self, response: drafter_pb2.DraftResponse) -> None:
        """Say in an answer which version drafts, if the verifier does not know yet."""
        if self._observer.serving != self._told:
            self._told = self._observer.serving
            response.version.CopyFrom(self._told)

    def close(self) -> None:
        """The stream has ended, and all its sequences with it."""
        for watched in self._watched.values():
            if watched.recording is not None:
                watched.recording.end()
        self._watched.clear()

    def _begin(self, message: drafter_pb2.SequenceDraft, serving: int) -> None:
        """A context begins; what was gathered of it before is wrong."""
        before = self._watched.get(message.sequence_id)
        if before is not None and before.recording is not None:
            before.recording.drop()
        allowed = None
        if message.HasField("recording"):
            allowed = (message.recording.answer_start, message.recording.temperature)
        recording = self._recorder.begin(message.request_id, allowed)
        self._watched[message.sequence_id] = _Watched(serving, recording)

    def _compare(self, watched: _Watched, message: drafter_pb2.SequenceDraft) -> None:
        proposal, watched.proposal = watched.proposal, ()
        if not proposal:
            return
        # The first of them is the anchor that was drafted from.
        committed = (*message.token_ids[1:], message.anchor_token_id)
        accepted = accepted_of(proposal, committed, message.feature_rows)
        if accepted is None:
            return
        watched.gained += 1 + accepted
        watched.steps += 1
        self._observer.verified(watched.drafted_by, 1 + accepted, own_context=not watched.changed)
