"""What the drafter holds of each sequence as far as is known, and what its answers change."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.scheduling.sequence import Draft, Sequence

logger = logging.getLogger(__name__)

# What `on_repair` is told.
REPAIR_CAUSES = (
    "stream_broken",
    "repeated_response",
    "missing_response",
    "context_mismatch",
    "malformed_draft",
    "resent_features",
)
# A context refused this often without a draft in between will be refused again.
MAX_REFUSALS = 3


@dataclass(slots=True, eq=False)
class Context:
    """One sequence's context at the drafter.

    A context built anew gets a new number, so that answers about the old one are recognized. The
    drafter holds `length` positions once all requests sent so far are done.
    """

    context_id: int
    sequence: Sequence
    length: int = 0
    refusals: int = 0


@dataclass(slots=True)
class PendingStep:
    """A request without an answer yet; times in seconds of the verifier's clock."""

    step_id: int
    sent_at: float
    deadline: float | None  # until when sequences wait for its drafts; None if none do
    feature_rows: int = 0
    late: bool = False  # whether the deadline passed
    # By context, positions it holds once this is done.
    expected_length: dict[int, int] = field(default_factory=dict)
    draft_length: dict[int, int] = field(default_factory=dict)  # by context, tokens asked for


class Contexts:
    """All contexts at the drafter; a sequence without one waits for no draft."""

    def __init__(self, vocab_size: int, on_repair: Callable[[str], None]) -> None:
        """Tell `on_repair` the cause of every difference; take token ids below `vocab_size`."""
        self._vocab_size = vocab_size
        self._on_repair = on_repair
        self._of_sequence: dict[Sequence, Context] = {}
        self._by_id: dict[int, Context] = {}
        # Of which the drafter is still to be told.
        self.released: list[int] = []
        self._last_id = 0

    def __iter__(self) -> Iterator[Context]:
        """Iterate over those there are now; any thread may."""
        return iter(tuple(self._of_sequence.values()))

    def __getitem__(self, sequence: Sequence) -> Context:
        """Return the context of a sequence that has one."""
        return self._of_sequence[sequence]

    @property
    def awaiting(self) -> bool:
        """Whether any sequence waits for its draft."""
        return any(sequence.awaiting_draft for sequence in self._of_sequence)

    def open(self, sequence: Sequence) -> Context:
        """Return a sequence's context, an empty one if it has none."""
        context = self._of_sequence.get(sequence)
        if context is None:
            self._last_id += 1
            context = Context(self._last_id, sequence)
            self._of_sequence[sequence] = self._by_id[self._last_id] = context
        return context

    def find(self, context_id: int) -> Context | None:
        """Return the context of this number unless it was released."""
        return self._by_id.get(context_id)

    def release(self, sequence: Sequence) -> None:
        """Drop a sequence's context; it may be built again from nothing later."""
        context = self._of_sequence.pop(sequence, None)
        if context is not None:
            del self._by_id[context.context_id]
            self.released.append(context.context_id)
        sequence.awaiting_draft = False

    def take_released(self) -> list[int]:
        """Return the contexts released since last asked: the drafter is to be told once."""
        released, self.released = self.released, []
        return released

    def clear(self) -> None:
        """Forget everything: the drafter has."""
        for sequence in self._of_sequence:
            sequence.awaiting_draft = False
        self._of_sequence.clear()
        self._by_id.clear()
        self.released = []

    def reconcile(self, response: pb.DraftResponse, step: PendingStep) -> None:
        """Take over the drafts of the answer to a step; find and repair differences."""
        unanswered = dict(step.expected_length)
        for error in response.sequence_errors:
            if unanswered.pop(error.sequence_id, None) is not None:
                self._refused(error)
        for draft in response.drafts:
            expected = unanswered.pop(draft.sequence_id, None)
            context = self.find(draft.sequence_id)
            if expected is not None and context is not None:
                draft_length = step.draft_length.get(draft.sequence_id, 0)
                self._drafted(context, draft, expected, draft_length)
        for context_id in unanswered:
            if (context := self.find(context_id)) is not None:
                self._rebuild(context, "missing_response")

    def _drafted(self, context: Context, draft: pb.Draft, expected: int, draft_length: int) -> None:
        """Take a draft over, unless anything about it is off."""
        sequence, tokens = context.sequence, tuple(draft.token_ids)
        known = not tokens or 0 <= min(tokens) <= max(tokens) < self._vocab_size
        if draft.context_length != expected:
            self._rebuild(context, "context_mismatch")
        elif len(tokens) > draft_length or not known:
            self._rebuild(context, "malformed_draft")
        elif draft_length > 0:
            context.refusals = 0
            # A sequence that did not wait has gone on without it.
            if sequence.committed == expected:
                sequence.draft = Draft(tokens, ended_early=len(tokens) < draft_length)
                sequence.awaiting_draft = False

    def _refused(self, error: pb.SequenceError) -> None:
        """Take the drafter's word for what it holds; the difference is sent again."""
        context = self.find(error.sequence_id)
        if context is None:
            return
        sequence = context.sequence
        context.refusals += 1
        hopeless = error.code == pb.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED
        if hopeless or context.refusals > MAX_REFUSALS:
            request_id = sequence.request.request_id
            said = {"request_id": request_id}
            logger.info("no drafting for request %s: %s", request_id, error.message, extra=said)
            sequence.draftable = False
            self.release(sequence)
        elif 0 <= error.expected_context_start <= sequence.committed:
            self._on_repair("resent_features")
            context.length = error.expected_context_start
            sequence.awaiting_draft = False
        else:
            self._rebuild(context, "context_mismatch")

    def _rebuild(self, context: Context, cause: str) -> None:
        self._on_repair(cause)
        self.release(context.sequence)
