"""One Draft stream: the protocol between a verifier and a draft method, without gRPC.

Keeps the invariant that must never break: a context's length here equals the verifier's
committed length. Whatever does not fit is refused for that sequence alone and touches nothing.
"""

import logging
import mmap
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from blockdraft_drafter.context.slots import Context, ContextTable, SlotPool
from blockdraft_drafter.learning.stream import StreamLearner
from blockdraft_drafter.method import ContextRow, ContextsLostError, DraftMethod, Sampling
from blockdraft_drafter.requests import (
    SequenceRefusedError,
    StepFeatures,
    check_sequence,
    read_sampling,
)
from blockdraft_protos.v1 import drafter_pb2

logger = logging.getLogger(__name__)


class StepOutOfOrderError(Exception):
    """A request was lost, repeated or reordered, so nothing on the stream can be trusted.

    Attributes:
        expected: The step_id that had to come.
        received: The step_id that came.
    """

    def __init__(self, expected: int, received: int) -> None:
        """Keep both numbers."""
        super().__init__(f"step_id is {received}, expected {expected}")
        self.expected = expected
        self.received = received


@dataclass(slots=True)
class _Accepted:
    """A sequence of the step that passed every check, and where its context lies."""

    message: drafter_pb2.SequenceDraft
    context: Context
    row: ContextRow


class Session:
    """The protocol state of one stream.

    Not thread-safe: every method is called on the event loop.
    """

    def __init__(
        self,
        method: DraftMethod,
        pool: SlotPool,
        shared: mmap.mmap | None = None,
        learner: StreamLearner | None = None,
    ) -> None:
        """Start before step 1, with no context.

        Args:
            method: Drafts; shared by the streams of the process.
            pool: The method's context slots; shared likewise.
            shared: Memory in which the verifier may leave features.
            learner: Learns from what arrives; None to learn nothing.
        """
        self._learner = learner
        self._shared = shared
        self._method = method
        self._pool = pool
        self._contexts = ContextTable(pool)
        self._last_step_id = 0

    @property
    def context_lengths(self) -> dict[int, int]:
        """Committed positions of every sequence that has a context."""
        return self._contexts.lengths()

    def state(self) -> dict[str, object]:
        """Return the stream's contexts, as values that JSON can hold."""
        return {
            "steps": self._last_step_id,
            "shares_memory": self._shared is not None,
            "contexts": [
                {"sequence": sequence_id, "tokens": each.length, "request_id": each.request_id}
                for sequence_id, each in self._contexts
            ],
        }

    def step(self, request: drafter_pb2.DraftRequest) -> drafter_pb2.DraftResponse:
        """Serve one request.

        Args:
            request: The next step of the stream.

        Returns:
            Its response, with `timings` filled in: compute_time is that of the method's step,
            total_time that of this call.

        Raises:
            StepOutOfOrderError: If the step_id does not follow; the stream must end.
            ContextsLostError: If the device step failed; the stream must end.
        """
        started = time.perf_counter()
        if request.step_id != self._last_step_id + 1:
            raise StepOutOfOrderError(self._last_step_id + 1, request.step_id)
        self._last_step_id = request.step_id
        self._contexts.drop_lost()
        for sequence_id in request.released_sequence_ids:
            self._contexts.release(sequence_id)
            if self._learner is not None:
                self._learner.released(sequence_id)

        response = drafter_pb2.DraftResponse(step_id=request.step_id)
        accepted = self._admit(request, response)
        computing = time.perf_counter()
        try:
            proposals = self._method.step([item.row for item in accepted]) if accepted else []
        except ContextsLostError:
            self._pool.invalidate()
            raise
        computed = time.perf_counter()
        for item, proposal in zip(accepted, proposals, strict=True):
            item.context.length += item.row.features.shape[0]
            # Filled in where it is: a message put into another one is copied.
            response.proposals.add(
                sequence_id=item.message.sequence_id,
                context_length=item.context.length,
                token_ids=proposal.token_ids,
            )
            if self._learner is not None:
                self._learner.stepped(item.message, item.row.features, proposal.token_ids)
        if self._learner is not None:
            self._learner.sign(response)
        response.timings.compute_time.FromNanoseconds(int((computed - computing) * 1e9))
        response.timings.total_time.FromNanoseconds(int((time.perf_counter() - started) * 1e9))
        return response

    def close(self) -> None:
        """Give all slots back; the stream has ended."""
        self._contexts.clear()
        if self._learner is not None:
            self._learner.close()

    def _admit(
        self, request: drafter_pb2.DraftRequest, response: drafter_pb2.DraftResponse
    ) -> list[_Accepted]:
        """Return the sequences that can be served; add an error to `response` for each other."""
        occurrences = Counter(sequence.sequence_id for sequence in request.sequences)
        refused: set[int] = set()
        accepted: list[_Accepted] = []
        features = StepFeatures(request, self._method.spec, self._shared)
        for index, sequence in enumerate(request.sequences):
            sequence_id = sequence.sequence_id
            if sequence_id in refused:
                continue
            try:
                if occurrences[sequence_id] > 1:
                    raise SequenceRefusedError(
                        drafter_pb2.SEQUENCE_ERROR_CODE_INVALID_INPUT,
                        f"the sequence is {occurrences[sequence_id]} times in the step",
                    )
                check_sequence(sequence, self._contexts.length(sequence_id), self._method.spec)
                sampling = read_sampling(sequence)
                accepted.append(self._accept(sequence, features.of(index), sampling))
            except SequenceRefusedError as error:
                refused.add(sequence_id)
                logger.debug(
                    "sequence %d is refused: %s",
                    sequence_id,
                    error,
                    extra={"request_id": sequence.request_id},
                )
                response.sequence_errors.add(
                    sequence_id=sequence_id,
                    code=error.code,
                    expected_context_start=self._contexts.length(sequence_id),
                    message=str(error),
                )
        return accepted

    def _accept(
        self, sequence: drafter_pb2.SequenceDraft, features: NDArray[Any], sampling: Sampling
    ) -> _Accepted:
        """Give a sequence a slot.

        Raises:
            SequenceRefusedError: If there is none.
        """
        context = self._contexts.open(sequence.sequence_id, sequence.request_id)
        if context is None:
            raise SequenceRefusedError(
                drafter_pb2.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED,
                f"all {self._pool.size} context slots are in use",
            )
        row = ContextRow(
            slot=context.slot,
            context_length=context.length,
            features=features,
            anchor_token_id=sequence.anchor_token_id,
            draft_length=sequence.draft_length,
            token_ids=tuple(sequence.token_ids),
            sampling=sampling,
            least_chance=sequence.least_chance,
        )
        return _Accepted(sequence, context, row)
