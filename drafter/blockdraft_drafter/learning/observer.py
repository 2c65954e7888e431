"""The sequences of a stream: their training samples, and the tokens that drafts gained them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from numpy.typing import NDArray

from blockdraft_drafter.learning.comparison import SequenceGain
from blockdraft_drafter.learning.recorder import GrowingSample
from blockdraft_drafter.learning.serving import ServingVersion
from blockdraft_protos.v1 import drafter_pb2


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


class StreamObserver:
    """Observes the sequences of one stream. Not thread-safe: called on the event loop."""

    def __init__(self, serving: ServingVersion) -> None:
        """Begin without sequences."""
        self._serving, self._metrics = serving, serving.recorder.metrics
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
        serving = self._serving.message.number
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
            self._serving.ended(watched.version, SequenceGain(watched.gained, watched.steps))

    def sign(self, response: drafter_pb2.DraftResponse) -> None:
        """Add the version that drafts to a response, if the verifier does not know it yet."""
        if self._serving.message != self._signed:
            self._signed = self._serving.message
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
        sample = self._serving.recorder.begin(message.request_id, allowed)
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
        whole = not watched.changed
        self._metrics.verified(watched.drafted_by, 1 + accepted, own_context=whole)
