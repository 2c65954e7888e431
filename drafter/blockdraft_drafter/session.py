"""One Draft stream: the protocol between a verifier and a draft method, without gRPC.

Keeps the invariant that must never break: the length of a sequence's draft KV cache here equals the
verifier's committed length. A request that does not fit is refused for its sequence alone and
touches nothing.
All of it is host bookkeeping on the event loop, without jax and without locks.
"""

import logging
import mmap
import time
from collections import Counter
from dataclasses import dataclass

from blockdraft_drafter.learning.observer import StreamObserver
from blockdraft_drafter.method import DraftCacheLostError, DraftMethod, DraftRow, Recycled
from blockdraft_drafter.requests import (
    SequenceRefusedError,
    StepFeatures,
    check_sequence,
    sampling_of,
)
from blockdraft_protos.v1 import drafter_pb2

logger = logging.getLogger(__name__)


class SlotPool:
    """Hands out the slots of the draft KV cache, each to one owner at a time, of any stream."""

    def __init__(self, size: int) -> None:
        """Make `size` free slots."""
        self.size = size
        # Rises whenever the cache's contents were lost: a sequence's part is only good in the
        # generation in which it was begun. Owners keep their slots until they release them.
        self.generation = 0
        # A stack whose top is the lowest slot: small batches stay in the same few slots.
        self._free = list(reversed(range(size)))

    @property
    def used(self) -> int:
        """Number of slots that have an owner."""
        return self.size - len(self._free)

    def acquire(self) -> int | None:
        """Return a free slot, which is the caller's now, or None when there is none."""
        return self._free.pop() if self._free else None

    def release(self, slot: int) -> None:
        """Take back a slot; raises ValueError if it is free."""
        if slot in self._free:
            raise ValueError(f"slot {slot} is not in use")
        self._free.append(slot)


class StepOutOfOrderError(Exception):
    """A request was lost, repeated or reordered, so nothing on the stream can be trusted."""

    def __init__(self, expected: int, received: int) -> None:
        """Keep both step_ids, the one that had to come and the one that came."""
        super().__init__(f"step_id is {received}, expected {expected}")
        self.expected = expected
        self.received = received


@dataclass(slots=True)
class _DraftCache:
    """The draft KV cache of one sequence: slot, committed positions, and the request for logs."""

    slot: int
    length: int
    request_id: str


class Session:
    """The protocol state of one stream."""

    def __init__(
        self,
        method: DraftMethod,
        pool: SlotPool,
        shared: mmap.mmap | None = None,
        observer: StreamObserver | None = None,
    ) -> None:
        """Start before step 1, with no sequence.

        Method and pool are shared by the streams of the process; in `shared` memory the verifier
        may leave features.
        """
        self._observer = observer
        self._shared = shared
        self._method = method
        self._pool = pool
        self._caches: dict[int, _DraftCache] = {}
        self._generation = pool.generation
        self._last_step_id = 0

    def state(self) -> dict[str, object]:
        """Return the stream's draft KV caches, as values that JSON can hold."""
        return {
            "steps": self._last_step_id,
            "shares_memory": self._shared is not None,
            "draft_caches": [
                {"sequence": sequence_id, "tokens": cache.length, "request_id": cache.request_id}
                for sequence_id, cache in self._caches.items()
            ],
        }

    def step(self, request: drafter_pb2.DraftRequest) -> drafter_pb2.DraftResponse:
        """Serve the next request of the stream, and time the method's step and the whole.

        After StepOutOfOrderError or DraftCacheLostError the stream must end.
        """
        started = time.perf_counter()
        if request.step_id != self._last_step_id + 1:
            raise StepOutOfOrderError(self._last_step_id + 1, request.step_id)
        self._last_step_id = request.step_id
        if self._generation != self._pool.generation:
            # They were lost in a step of another stream.
            self._release_all()
            self._generation = self._pool.generation
        for sequence_id in request.released_sequence_ids:
            self._release(sequence_id)
            if self._observer is not None:
                self._observer.released(sequence_id)

        response = drafter_pb2.DraftResponse(step_id=request.step_id)
        accepted = self._admit(request, response)
        computing = time.perf_counter()
        try:
            drafts = self._method.step([row for *_, row in accepted]) if accepted else []
        except DraftCacheLostError:
            self._pool.generation += 1
            raise
        computed = time.perf_counter()
        for (sequence, cache, row), draft in zip(accepted, drafts, strict=True):
            cache.length += row.features.shape[0]
            # Filled in where it is: a message put into another one is copied.
            response.drafts.add(
                sequence_id=sequence.sequence_id,
                context_length=cache.length,
                token_ids=draft,
            )
            if self._observer is not None:
                self._observer.stepped(sequence, row.features, draft)
        if self._observer is not None:
            self._observer.sign(response)
        response.timings.compute_time.FromNanoseconds(int((computed - computing) * 1e9))
        response.timings.total_time.FromNanoseconds(int((time.perf_counter() - started) * 1e9))
        return response

    def close(self) -> None:
        """Give all slots back; the stream has ended."""
        self._release_all()
        if self._observer is not None:
            self._observer.close()

    def _release_all(self) -> None:
        for sequence_id in list(self._caches):
            self._release(sequence_id)

    def _release(self, sequence_id: int) -> None:
        """Drop a sequence's draft KV cache; an unknown sequence has none to drop."""
        cache = self._caches.pop(sequence_id, None)
        if cache is not None:
            self._pool.release(cache.slot)

    def _admit(
        self, request: drafter_pb2.DraftRequest, response: drafter_pb2.DraftResponse
    ) -> list[tuple[drafter_pb2.SequenceDraft, _DraftCache, DraftRow]]:
        """Return the sequences that can be served; add an error to `response` for each other."""
        occurrences = Counter(sequence.sequence_id for sequence in request.sequences)
        refused: set[int] = set()
        accepted: list[tuple[drafter_pb2.SequenceDraft, _DraftCache, DraftRow]] = []
        features = StepFeatures(request, self._method.spec, self._shared)
        for index, sequence in enumerate(request.sequences):
            sequence_id = sequence.sequence_id
            if sequence_id in refused:
                continue
            cache = self._caches.get(sequence_id)
            length = 0 if cache is None else cache.length
            try:
                if occurrences[sequence_id] > 1:
                    raise SequenceRefusedError(
                        drafter_pb2.SEQUENCE_ERROR_CODE_INVALID_INPUT,
                        f"the sequence is {occurrences[sequence_id]} times in the step",
                    )
                check_sequence(sequence, length, self._method.spec)
                rows, sampling = features.of(index), sampling_of(sequence)
                cache = cache or self._begin(sequence)
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
                    expected_context_start=length,
                    message=str(error),
                )
                continue
            chosen = sequence.recycled
            row = DraftRow(
                slot=cache.slot,
                context_length=length,
                features=rows,
                anchor_token_id=sequence.anchor_token_id,
                draft_length=sequence.draft_length,
                token_ids=tuple(sequence.token_ids),
                sampling=sampling,
                least_chance=sequence.least_chance,
                recycled=Recycled(chosen.positions, chosen.after_token_ids, chosen.token_ids),
            )
            accepted.append((sequence, cache, row))
        return accepted

    def _begin(self, sequence: drafter_pb2.SequenceDraft) -> _DraftCache:
        """Give a sequence a slot."""
        slot = self._pool.acquire()
        if slot is None:
            raise SequenceRefusedError(
                drafter_pb2.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED,
                f"all {self._pool.size} slots of the draft KV cache are in use",
            )
        cache = _DraftCache(slot, 0, sequence.request_id)
        self._caches[sequence.sequence_id] = cache
        return cache
