"""What an answer of the drafter changes: proposals taken over, differences found and repaired."""

import logging
from collections.abc import Callable

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.drafting.contexts import Context, Contexts, PendingStep
from blockdraft_verifier.scheduling.sequence import Proposal

logger = logging.getLogger(__name__)

# What `on_repair` is told.
REPAIR_CAUSES = (
    "stream_broken",
    "repeated_answer",
    "missing_answer",
    "context_mismatch",
    "malformed_proposal",
    "resent_context",
)
# A context refused this often without a proposal in between will be refused again.
MAX_REFUSALS = 3


class Reconciler:
    """Compares what the drafter says of its contexts with what was sent."""

    def __init__(
        self, contexts: Contexts, vocab_size: int, on_repair: Callable[[str], None]
    ) -> None:
        """Keep `contexts` true.

        Args:
            contexts: What the drafter holds.
            vocab_size: Token ids at or above it are refused.
            on_repair: Told the cause of every difference found.
        """
        self._contexts = contexts
        self._vocab_size = vocab_size
        self._on_repair = on_repair

    def take(self, response: pb.DraftResponse, step: PendingStep) -> None:
        """Take in the answer to a step."""
        unanswered = dict(step.expected_length)
        for error in response.sequence_errors:
            if unanswered.pop(error.sequence_id, None) is not None:
                self._refused(error)
        for proposal in response.proposals:
            expected = unanswered.pop(proposal.sequence_id, None)
            context = self._contexts.find(proposal.sequence_id)
            if expected is None or context is None:
                continue
            length = step.draft_length.get(proposal.sequence_id, 0)
            self._proposed(context, proposal, expected, length)
        for context_id in unanswered:
            if (context := self._contexts.find(context_id)) is not None:
                self._rebuild(context, "missing_answer")

    def _proposed(
        self, context: Context, proposal: pb.Proposal, expected: int, draft_length: int
    ) -> None:
        """Take a proposal over, unless anything about it is off."""
        sequence = context.sequence
        tokens = tuple(proposal.token_ids)
        if proposal.context_length != expected:
            self._rebuild(context, "context_mismatch")
        elif len(tokens) > draft_length or (
            tokens and not 0 <= min(tokens) <= max(tokens) < self._vocab_size
        ):
            self._rebuild(context, "malformed_proposal")
        elif draft_length > 0:
            context.refusals = 0
            # A sequence that did not wait has gone on without it.
            if sequence.committed == expected:
                ended_early = len(tokens) < draft_length
                sequence.proposal = Proposal(tokens, ended_early=ended_early)
                sequence.awaiting_draft = False

    def _refused(self, error: pb.SequenceError) -> None:
        """Take the drafter's word for what it holds; the difference is sent again."""
        context = self._contexts.find(error.sequence_id)
        if context is None:
            return
        sequence = context.sequence
        context.refusals += 1
        hopeless = error.code == pb.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED
        if hopeless or context.refusals > MAX_REFUSALS:
            request_id = sequence.request.request_id
            logger.info(
                "no drafting for request %s: %s",
                request_id,
                error.message,
                extra={"request_id": request_id},
            )
            sequence.draftable = False
            self._contexts.release(sequence)
        elif 0 <= error.expected_context_start <= sequence.committed:
            self._on_repair("resent_context")
            context.length = error.expected_context_start
            sequence.awaiting_draft = False
        else:
            self._rebuild(context, "context_mismatch")

    def _rebuild(self, context: Context, cause: str) -> None:
        self._on_repair(cause)
        self._contexts.release(context.sequence)
