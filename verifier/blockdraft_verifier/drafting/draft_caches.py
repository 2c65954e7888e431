"""The draft KV caches at the drafter, as far as is known, and what its responses change."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.scheduling.sequence import Draft, TokenSequence

logger = logging.getLogger(__name__)

# Causes that `on_repair` is called with.
REPAIR_CAUSES = (
    "stream_broken",
    "repeated_response",
    "missing_response",
    "context_mismatch",
    "malformed_draft",
    "resent_features",
)
# A sequence refused this often without a draft in between will be refused again.
MAX_REFUSALS = 3


@dataclass(slots=True, eq=False)
class DraftCache:
    """The draft KV cache of one sequence, at the drafter.

    A cache built anew gets a new number, so that responses about the old one are recognized. The
    drafter holds `length` positions once all requests sent so far are done.
    """

    cache_id: int
    sequence: TokenSequence
    length: int = 0
    refusals: int = 0


@dataclass(slots=True)
class PendingStep:
    """A request without a response yet; times in seconds of the verifier's clock."""

    step_id: int
    sent_at: float
    deadline: float | None  # until when sequences wait for its drafts; None if none do
    feature_rows: int = 0
    late: bool = False  # whether the deadline passed
    # By cache, positions it holds once this is done.
    expected_length: dict[int, int] = field(default_factory=dict)
    draft_length: dict[int, int] = field(default_factory=dict)  # by cache, tokens asked for


class DraftCaches:
    """All draft KV caches at the drafter; a sequence without one waits for no draft."""

    def __init__(self, vocab_size: int, on_repair: Callable[[str], None]) -> None:
        """Call `on_repair` with the cause of each difference; take token ids below `vocab_size`."""
        self._vocab_size = vocab_size
        self._on_repair = on_repair
        self._of_sequence: dict[TokenSequence, DraftCache] = {}
        self._by_id: dict[int, DraftCache] = {}
        # Ids of caches that the drafter has not been told to drop yet.
        self.released: list[int] = []
        self._last_id = 0

    def __iter__(self) -> Iterator[DraftCache]:
        """Iterate over the present ones; any thread may."""
        return iter(tuple(self._of_sequence.values()))

    def __getitem__(self, sequence: TokenSequence) -> DraftCache:
        """Return the cache of a sequence that has one."""
        return self._of_sequence[sequence]

    @property
    def awaiting(self) -> bool:
        """Whether any sequence waits for its draft."""
        return any(sequence.awaiting_draft for sequence in self._of_sequence)

    def open(self, sequence: TokenSequence) -> DraftCache:
        """Return a sequence's cache, an empty one if it has none."""
        cache = self._of_sequence.get(sequence)
        if cache is None:
            self._last_id += 1
            cache = DraftCache(self._last_id, sequence)
            self._of_sequence[sequence] = self._by_id[self._last_id] = cache
        return cache

    def find(self, cache_id: int) -> DraftCache | None:
        """Return the cache of this number unless it was released."""
        return self._by_id.get(cache_id)

    def release(self, sequence: TokenSequence) -> None:
        """Drop a sequence's cache; it may be built again from nothing later."""
        cache = self._of_sequence.pop(sequence, None)
        if cache is not None:
            del self._by_id[cache.cache_id]
            self.released.append(cache.cache_id)
        sequence.awaiting_draft = False

    def take_released(self) -> list[int]:
        """Return the caches released since the last call: the drafter is to be told once."""
        released, self.released = self.released, []
        return released

    def clear(self) -> None:
        """Forget all caches: the drafter has lost them."""
        for sequence in self._of_sequence:
            sequence.awaiting_draft = False
        self._of_sequence.clear()
        self._by_id.clear()
        self.released = []

    def reconcile(self, response: pb.DraftResponse, step: PendingStep) -> None:
        """Take the drafts of the response to a step; find and repair differences."""
        unanswered = dict(step.expected_length)
        for error in response.sequence_errors:
            if unanswered.pop(error.sequence_id, None) is not None:
                self._handle_refusal(error)
        for draft in response.drafts:
            expected = unanswered.pop(draft.sequence_id, None)
            cache = self.find(draft.sequence_id)
            if expected is not None and cache is not None:
                draft_length = step.draft_length.get(draft.sequence_id, 0)
                self._take_draft(cache, draft, expected, draft_length)
        for cache_id in unanswered:
            if (cache := self.find(cache_id)) is not None:
                self._rebuild(cache, "missing_response")

    def _take_draft(
        self, cache: DraftCache, draft: pb.Draft, expected: int, draft_length: int
    ) -> None:
        """Give a draft to its sequence, unless anything about it is wrong."""
        sequence, tokens = cache.sequence, tuple(draft.token_ids)
        in_vocabulary = not tokens or 0 <= min(tokens) <= max(tokens) < self._vocab_size
        if draft.context_length != expected:
            self._rebuild(cache, "context_mismatch")
        elif len(tokens) > draft_length or not in_vocabulary:
            self._rebuild(cache, "malformed_draft")
        elif draft_length > 0:
            cache.refusals = 0
            # A sequence that did not wait has gone on without it.
            if sequence.committed == expected:
                sequence.draft = Draft(tokens, ended_early=len(tokens) < draft_length)
                sequence.awaiting_draft = False

    def _handle_refusal(self, error: pb.SequenceError) -> None:
        """Believe the drafter about what it holds; the missing features are sent again."""
        cache = self.find(error.sequence_id)
        if cache is None:
            return
        sequence = cache.sequence
        cache.refusals += 1
        hopeless = error.code == pb.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED
        if hopeless or cache.refusals > MAX_REFUSALS:
            request_id = sequence.request.request_id
            logger.info(
                "no drafting for request %s: %s",
                request_id,
                error.message,
                extra={"request_id": request_id},
            )
            sequence.draftable = False
            self.release(sequence)
        elif 0 <= error.expected_context_start <= sequence.committed:
            self._on_repair("resent_features")
            cache.length = error.expected_context_start
            sequence.awaiting_draft = False
        else:
            self._rebuild(cache, "context_mismatch")

    def _rebuild(self, cache: DraftCache, cause: str) -> None:
        self._on_repair(cause)
        self.release(cache.sequence)
