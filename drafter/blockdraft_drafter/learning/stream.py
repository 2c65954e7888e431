"""What one Draft stream tells: sequences to record, and how much of what was drafted was right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from blockdraft_drafter.learning.recorder import StreamRecorder
from blockdraft_drafter.learning.service_tau import Ended, accepted_of
from blockdraft_protos.v1 import drafter_pb2


@dataclass(frozen=True, slots=True)
class Serving:
    """The version that drafts now; see `Version`."""

    number: int
    fingerprint: str
    trained: bool

    def to_proto(self) -> drafter_pb2.DrafterVersion:
        """Return what a verifier is told of it."""
        return drafter_pb2.DrafterVersion(
            number=self.number, fingerprint=self.fingerprint, trained=self.trained
        )


@runtime_checkable
class Observer(Protocol):
    """Hears what was accepted, of all streams; called on the event loop.

    Attributes:
        serving: The version that drafts now.
    """

    serving: Serving

    def verified(self, version: int, gained: int, *, own_context: bool) -> None:
        """A proposal was verified.

        Args:
            version: Which drafted it.
            gained: Tokens that it brought, the target's own one included.
            own_context: Whether the version made all of the context, too.
        """

    def ended(self, version: int, ended: Ended) -> None:
        """A sequence has ended that one version drafted for from beginning to end."""


@dataclass(slots=True)
class _Watched:
    """A sequence whose drafts are compared with what became of them."""

    version: int
    changed: bool = False
    gained: int = 0
    steps: int = 0
    drafted_by: int = 0
    proposal: tuple[int, ...] = ()


class StreamLearner:
    """Learns from the sequences of one stream. Not thread-safe: called on the event loop."""

    def __init__(self, observer: Observer, recorder: StreamRecorder) -> None:
        """Learn of no sequence yet.

        Args:
            observer: Told what was accepted.
            recorder: Given what may be recorded.
        """
        self._observer = observer
        self._recorder = recorder
        self._watched: dict[int, _Watched] = {}
        self._told: Serving | None = None

    def stepped(
        self,
        message: drafter_pb2.SequenceDraft,
        features: NDArray[Any],
        proposal: Sequence[int],
    ) -> None:
        """A sequence's part of a step is done.

        Args:
            message: What was asked.
            features: Those appended.
            proposal: What was drafted; empty if nothing was.
        """
        sequence_id, start = message.sequence_id, message.context_start
        if start == 0:
            allowed = None
            if message.HasField("recording"):
                allowed = (message.recording.answer_start, message.recording.temperature)
            self._recorder.begin(sequence_id, message.request_id, allowed)
            self._watched[sequence_id] = _Watched(self._observer.serving.number)
        self._recorder.append(sequence_id, start, features, message.token_ids)
        watched = self._watched.get(sequence_id)
        if watched is None:
            return
        if len(features):
            self._compare(watched, message)
        if watched.version != self._observer.serving.number:
            watched.changed = True
        if proposal:
            watched.proposal = tuple(proposal)
            watched.drafted_by = self._observer.serving.number

    def released(self, sequence_id: int) -> None:
        """A context is not needed any more."""
        self._recorder.end(sequence_id)
        watched = self._watched.pop(sequence_id, None)
        if watched is not None and watched.steps and not watched.changed:
            self._observer.ended(watched.version, Ended(watched.gained, watched.steps))

    def sign(self, response: drafter_pb2.DraftResponse) -> None:
        """Say in an answer which version drafts, if the verifier does not know yet."""
        serving = self._observer.serving
        if serving != self._told:
            self._told = serving
            response.version.CopyFrom(serving.to_proto())

    def close(self) -> None:
        """The stream has ended."""
        self._recorder.close()
        self._watched.clear()

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
