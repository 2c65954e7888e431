"""Accepted-token sync: the drafter's context of a sequence is what the verifier has committed.

The invariant, for every sequence and at every step: `drafter context length == committed length`.
Only features of committed positions are sent, each exactly once, in order; the drafter refuses
anything else for that sequence alone and says what it expected, and every answer carries its
context length. Whatever goes wrong (a lost, repeated, reordered or cut message, a restart) shows
up as a difference, is counted, and is repaired by sending the missing features again from the
feature store; meanwhile the sequence decodes plainly. Output never depends on any of this.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.cache import FeatureStore
from blockdraft_verifier.drafting.contexts import Context, Contexts, PendingStep
from blockdraft_verifier.drafting.link import (
    DrafterDescription,
    DraftLink,
    DraftTransport,
    TransportError,
)
from blockdraft_verifier.scheduling.sequence import Proposal, Sequence

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
# Keeps a request far below the channel's message limit.
MAX_REQUEST_FEATURE_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class DraftTimes:
    """What waiting for the drafter took, and what came of it.

    Attributes:
        waited: Seconds until the answers were there.
        computed: Seconds the drafter computed.
        answers: Answers taken in.
        proposals: Proposals with tokens among them.
    """

    waited: float = 0.0
    computed: float = 0.0
    answers: int = 0
    proposals: int = 0

    @property
    def transport(self) -> float:
        """Seconds waited beyond the drafter's computation."""
        return max(0.0, self.waited - self.computed)


class DraftSync:
    """Keeps the drafter in step and turns its answers into proposals."""

    def __init__(
        self,
        link: DraftLink,
        vocab_size: int,
        timeout_seconds: float,
        on_repair: Callable[[str], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Draft over `link`.

        Args:
            link: Where streams to the drafter come from.
            vocab_size: Token ids at or above it are refused.
            timeout_seconds: How long an answer may take before the stream counts as lost.
            on_repair: Told the cause of every difference found.
            clock: Seconds.
        """
        self._link = link
        self._vocab_size = vocab_size
        self._timeout_seconds = timeout_seconds
        self._on_repair = on_repair
        self._clock = clock
        self._transport: DraftTransport | None = None
        self._features: FeatureStore | None = None
        self.contexts = Contexts()
        self._pending: deque[PendingStep] = deque()
        self._last_step_id = 0

    @property
    def description(self) -> DrafterDescription | None:
        """The attached drafter, or None."""
        return self._transport.description if self._transport is not None else None

    @property
    def awaiting(self) -> bool:
        """Whether any sequence waits for its proposal."""
        return self.contexts.awaiting

    def poll(self) -> DrafterDescription | None:
        """Notice a new connection; return its description if there is one."""
        transport = self._link.current()
        if transport is self._transport or transport is None:
            return None
        self._forget_contexts()
        self._transport = transport
        return transport.description

    def use_features(self, features: FeatureStore) -> None:
        """Read features from `features` from now on."""
        self._features = features

    def request(self, wanted: Iterable[tuple[Sequence, int]]) -> None:
        """Send what the drafter lacks of each sequence, then ask for proposals.

        Args:
            wanted: Sequences and how many tokens to draft for each; 0 only sends features.
        """
        remaining = [
            (self.contexts.open(sequence), draft_length)
            for sequence, draft_length in wanted
            if sequence.draftable
        ]
        try:
            while remaining and self._transport is not None:
                remaining = self._send_step(self._transport, remaining)
        except TransportError as error:
            self._lose_transport("stream_broken", error)

    def collect(self, *, wait: Literal["none", "any", "all"]) -> DraftTimes:
        """Take in answers.

        Args:
            wait: "none" takes those that are there; "any" waits for one if sequences wait for
                proposals; "all" waits until no sequence does.

        Returns:
            The time it took, and how much of it the drafter computed.
        """
        times = DraftTimes()
        started = self._clock()
        while self._pending and self._transport is not None:
            block = wait != "none" and self.awaiting
            left = started + self._timeout_seconds - self._clock()
            try:
                response = self._transport.receive(left if block else 0.0)
                if response is not None:
                    times.computed += response.timings.compute_time.ToTimedelta().total_seconds()
                    times.answers += 1
                    times.proposals += sum(bool(p.token_ids) for p in response.proposals)
                    self._apply(response)
                    if wait == "any":
                        wait = "none"
                elif not block:
                    break
                elif self._clock() - started >= self._timeout_seconds:
                    raise TransportError(f"no answer within {self._timeout_seconds} s")
            except TransportError as error:
                self._lose_transport("stream_broken", error)
        times.waited = self._clock() - started
        return times

    def release(self, sequence: Sequence) -> None:
        """Drop the sequence's context; it may be built again from nothing later."""
        self.contexts.release(sequence)

    def close(self) -> None:
        """Stop drafting."""
        self._forget_contexts()
        self._transport = None
        self._link.close()

    def _send_step(
        self, transport: DraftTransport, wanted: list[tuple[Context, int]]
    ) -> list[tuple[Context, int]]:
        """Send one request; return what did not fit."""
        self._last_step_id += 1
        pending = PendingStep(self._last_step_id)
        request = pb.DraftRequest(step_id=pending.step_id)
        remaining, size = [], 0
        for context, draft_length in wanted:
            sequence = context.sequence
            if sequence.committed > transport.description.max_context_tokens:
                sequence.draftable = False
                self.release(sequence)
                continue
            if size >= MAX_REQUEST_FEATURE_BYTES:
                remaining.append((context, draft_length))
                continue
            part = self._sequence_part(context, draft_length, transport.description)
            size += len(part.features.data)
            context.length += part.features.shape[0]
            if context.length < sequence.committed:
                remaining.append((context, draft_length))
            request.sequences.append(part)
            pending.expected_length[context.context_id] = context.length
            pending.draft_length[context.context_id] = part.draft_length
            sequence.awaiting_draft = draft_length > 0
        request.released_sequence_ids.extend(self.contexts.take_released())
        self._pending.append(pending)
        transport.send(request)
        return remaining

    def _sequence_part(
        self, context: Context, draft_length: int, description: DrafterDescription
    ) -> pb.SequenceDraft:
        assert self._features is not None, "use_features comes before request"
        sequence, start = context.sequence, context.length
        stop = min(sequence.committed, start + description.max_feature_rows)
        rows = self._features.read(sequence.pages, start, stop)
        complete = stop == sequence.committed
        return pb.SequenceDraft(
            sequence_id=context.context_id,
            context_start=start,
            features=pb.Tensor(shape=rows.shape, dtype=pb.DATA_TYPE_BFLOAT16, data=rows.tobytes()),
            anchor_token_id=sequence.tokens[stop],
            draft_length=draft_length if complete else 0,
            token_ids=sequence.tokens[start:stop],
        )

    def _apply(self, response: pb.DraftResponse) -> None:
        pending = self._pending[0]
        if response.step_id < pending.step_id:
            self._on_repair("repeated_answer")
            return
        if response.step_id > pending.step_id:
            raise TransportError(f"answer {response.step_id} came before {pending.step_id}")
        self._pending.popleft()
        unanswered = dict(pending.expected_length)
        for error in response.sequence_errors:
            if unanswered.pop(error.sequence_id, None) is not None:
                self._refused(error)
        for proposal in response.proposals:
            expected = unanswered.pop(proposal.sequence_id, None)
            context = self.contexts.find(proposal.sequence_id)
            if expected is None or context is None:
                continue
            length = pending.draft_length[proposal.sequence_id]
            self._proposed(context, proposal, expected, length)
        for context_id in unanswered:
            if (context := self.contexts.find(context_id)) is not None:
                self._rebuild(context, "missing_answer")

    def _proposed(
        self, context: Context, proposal: pb.Proposal, expected: int, draft_length: int
    ) -> None:
        """Take a proposal over, unless anything about it is off."""
        sequence = context.sequence
        tokens = leading_chain(proposal)
        if proposal.context_length != expected:
            self._rebuild(context, "context_mismatch")
        elif len(tokens) > draft_length or any(
            not 0 <= token < self._vocab_size for token in tokens
        ):
            self._rebuild(context, "malformed_proposal")
        elif draft_length > 0:
            context.refusals = 0
            sequence.proposal = Proposal(tokens, tuple(proposal.log_probs[: len(tokens)]))
            sequence.awaiting_draft = False

    def _refused(self, error: pb.SequenceError) -> None:
        """Take the drafter's word for what it holds; the difference is sent again."""
        context = self.contexts.find(error.sequence_id)
        if context is None:
            return
        sequence = context.sequence
        context.refusals += 1
        hopeless = error.code == pb.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED
        if hopeless or context.refusals > MAX_REFUSALS:
            logger.info("no drafting for sequence %d: %s", sequence.sequence_id, error.message)
            sequence.draftable = False
            self.release(sequence)
        elif 0 <= error.expected_context_start <= sequence.committed:
            self._on_repair("resent_context")
            context.length = error.expected_context_start
            sequence.awaiting_draft = False
        else:
            self._rebuild(context, "context_mismatch")

    def _rebuild(self, context: Context, cause: str) -> None:
        self._on_repair(cause)
        self.release(context.sequence)

    def _lose_transport(self, cause: str, error: TransportError) -> None:
        logger.warning("drafting suspended: %s", error)
        self._on_repair(cause)
        if self._transport is not None:
            self._link.lost(self._transport)
        self._transport = None
        self._forget_contexts()

    def _forget_contexts(self) -> None:
        self.contexts.clear()
        self._pending.clear()
        # Step numbers start again with each stream.
        self._last_step_id = 0


def leading_chain(proposal: pb.Proposal) -> tuple[int, ...]:
    """Return the tokens of a proposal up to where its tree first branches."""
    if not proposal.parents:
        return tuple(proposal.token_ids)
    chain = []
    for index, (token, parent) in enumerate(
        zip(proposal.token_ids, proposal.parents, strict=False)
    ):
        if parent != index - 1:
            break
        chain.append(token)
    return tuple(chain)
