"""Accepted-token sync: the draft KV cache of a sequence holds what the verifier has committed.

The invariant, for every sequence and at every step: `drafter context length == committed length`.
Only features of committed positions are sent, each exactly once, in order; the drafter refuses
anything else for that sequence alone and says what it expected, and every draft carries its context
length. Whatever goes wrong (a lost, repeated, reordered or cut message, a restart) shows up as a
difference, is counted, and is repaired by sending the missing features again from the feature
store; meanwhile the sequence decodes plainly. Output never depends on any of this.

Waits are short. Sequences wait for a draft until the deadline that came with the request; then they
are decoded plainly, and the drafter is asked nothing until it has answered and some time has
passed. The bytes on their way to it are bounded at any time.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.channel import Backoff, BackoffPolicy
from blockdraft_verifier.device.cache import FeatureStore
from blockdraft_verifier.drafting.draft_caches import DraftCache, DraftCaches, PendingStep
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import DraftLink, DraftTransport, TransportError
from blockdraft_verifier.drafting.outgoing import (
    CachePart,
    catch_up,
    divide,
    to_learn_from,
    to_request,
)
from blockdraft_verifier.scheduling.sequence import TokenSequence

logger = logging.getLogger(__name__)

# How long a drafter that was late is asked nothing. The first pause is that of a few steps, as on a
# busy machine any drafter is late now and then; the longest bounds how often a drafter that hangs,
# or comes back only to hang again, costs a wait.
LEAVING_ALONE = BackoffPolicy(initial_seconds=0.05, max_seconds=30.0)


class LateResponse(NamedTuple):
    """Drafts that came after their deadline; times in seconds, `elapsed` since the request."""

    drafts: int
    longest: int
    computed: float
    elapsed: float


@dataclass(slots=True)
class DraftTimes:
    """Seconds of waiting for the drafter, and drafts that came; the policy learns from them."""

    waited: float = 0.0  # seconds until the responses had come or their deadlines had passed
    computed: float = 0.0  # seconds the drafter computed what was waited for
    responses: int = 0  # that came in time, with `drafts` of up to `longest` tokens
    drafts: int = 0
    longest: int = 0
    # Whether they appended more features than one verification commits, and so took longer than
    # usual.
    backlogged: bool = False
    missed: int = 0  # deadlines that passed; `late` are the responses that came after theirs
    late: list[LateResponse] = field(default_factory=list)

    @property
    def draft(self) -> float:
        """Seconds waited while the drafter computed."""
        return min(self.computed, self.waited)

    @property
    def transport(self) -> float:
        """Seconds waited beyond the drafter's computation."""
        return max(0.0, self.waited - self.computed)


class DraftSync:
    """Keeps the drafter in step and gives its drafts to their sequences."""

    def __init__(
        self,
        link: DraftLink,
        vocab_size: int,
        timeout_seconds: float,
        on_repair: Callable[[str], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Draft over `link`, calling `on_repair` with the cause of every difference found.

        A stream counts as lost once a response takes longer than `timeout_seconds`; no sequence
        waits as long as that.
        """
        self._link = link
        self._timeout_seconds = timeout_seconds
        self._on_repair = on_repair
        self._clock = clock
        self._transport: DraftTransport | None = None
        self._features: FeatureStore | None = None
        self.caches = DraftCaches(vocab_size, on_repair)
        # It outlives the streams: a drafter whose worker hangs still takes a new one.
        self._leaving_alone = Backoff(LEAVING_ALONE)
        self._asks_from = -math.inf
        self._pending: deque[PendingStep] = deque()
        self._last_step_id = 0

    @property
    def description(self) -> DrafterDescription | None:
        """The attached drafter, or None."""
        return self._transport.description if self._transport is not None else None

    @property
    def left_alone_seconds(self) -> float:
        """Seconds for which the drafter is still asked nothing, since it was late."""
        return max(0.0, self._asks_from - self._clock())

    @property
    def unanswered(self) -> int:
        """Requests to the drafter that have no response yet."""
        return len(self._pending)

    def poll(
        self, usable: Callable[[DrafterDescription], bool] = lambda drafter: True
    ) -> DrafterDescription | None:
        """Notice a new connection, or the end of an idle one; return a new one's description.

        A drafter that is not usable yet is left for a later call.
        """
        if self._transport is not None and not self._pending:
            try:
                # No response is due, so only the end of the stream can arrive.
                if self._transport.receive(0.0) is not None:
                    self._on_repair("repeated_response")
            except TransportError as error:
                self._lose_transport(error)
        transport = self._link.current()
        if transport is self._transport or transport is None:
            return None
        if not usable(transport.description):
            return None
        self._forget_caches()
        self._transport = transport
        return transport.description

    def use_features(self, features: FeatureStore) -> None:
        """Read features from `features` from now on."""
        self._features = features

    def request(
        self,
        draft_lengths: Iterable[tuple[TokenSequence, int]],
        wait_seconds: float,
        *,
        least_chance: float = 0.0,
    ) -> None:
        """Ask for drafts, then send features that other draft KV caches lack.

        `draft_lengths` says how many tokens to draft for each sequence; 0 only sends features. They
        wait for their drafts for at most `wait_seconds`; see `to_request` for `least_chance`.
        """
        drafter = self._drafter_to_ask()
        if drafter is None:
            return
        caches = [
            (self.caches.open(sequence), draft_length)
            for sequence, draft_length in draft_lengths
            if self._fits(sequence, drafter)
        ]
        parts, behind = divide(caches, drafter)
        if parts:
            self._send(parts, wait_seconds, least_chance)
        self._catch_up(behind, drafter)

    def send_to_learn(self, sequences: Iterable[TokenSequence]) -> None:
        """Send a drafter that learns the features it lacks of sequences that await no draft.

        `sequences` are all that run or have just ended. No sequence waits for it, and the bytes are
        bounded as for catching up.
        """
        drafter = self._drafter_to_ask()
        if drafter is None or not drafter.learns:
            return
        caches = [
            self.caches.open(sequence)
            for sequence in sequences
            if sequence.request.recordable
            and sequence.request.max_draft_tokens != 0
            and not sequence.awaiting_draft
            and self._fits(sequence, drafter)
        ]
        self._catch_up(to_learn_from(caches, drafter), drafter)

    def tell_released(self) -> None:
        """Tell the drafter which draft KV caches to drop, if no request has done so yet."""
        if self.caches.released and self._drafter_to_ask() is not None:
            self._send([], None)

    def collect(self, *, wait: Literal["none", "any", "all"]) -> DraftTimes:
        """Take in responses, and let no sequence wait beyond a deadline.

        "none" takes the responses that are there; "any" waits for one if sequences wait for drafts;
        "all" waits until no sequence does.
        """
        times = DraftTimes()
        started = self._clock()
        try:
            while self._pending and self._transport is not None:
                # A response that is there came in time, however late it is read.
                response = self._transport.receive(0.0)
                if response is None:
                    self._enforce_deadlines(times)
                    left = self._seconds_left()
                    if left is None or wait == "none" or (wait == "any" and times.missed):
                        break
                    response = self._transport.receive(left)
                if response is not None:
                    self._take(response, times)
                    if wait == "any" and times.drafts:
                        wait = "none"
        except TransportError as error:
            self._lose_transport(error)
        times.waited = self._clock() - started
        return times

    def close(self) -> None:
        """Stop drafting."""
        self._forget_caches()
        self._transport = None
        self._link.close()

    def _drafter_to_ask(self) -> DrafterDescription | None:
        """Return the drafter, unless it is late: nothing is queued for it then."""
        late = self.left_alone_seconds > 0 or any(step.late for step in self._pending)
        return None if late else self.description

    def _fits(self, sequence: TokenSequence, drafter: DrafterDescription) -> bool:
        if sequence.draftable and sequence.committed > drafter.max_context_tokens:
            sequence.draftable = False
            self.caches.release(sequence)
        return sequence.draftable

    def _catch_up(self, behind: list[DraftCache], drafter: DrafterDescription) -> None:
        """Send draft KV caches the features they lack, a bounded number of bytes at a time."""
        while self._transport is not None:
            under_way = sum(step.feature_rows for step in self._pending if not step.draft_length)
            parts = catch_up(behind, drafter, under_way)
            if not parts:
                return
            self._send(parts, None)

    def _send(
        self, parts: list[CachePart], wait_seconds: float | None, least_chance: float = 0.0
    ) -> None:
        transport = self._transport
        assert transport is not None
        assert self._features is not None, "use_features comes before request"
        self._last_step_id += 1
        now = self._clock()
        deadline = None if wait_seconds is None else now + wait_seconds
        step = PendingStep(self._last_step_id, now, deadline)
        request = to_request(
            step.step_id,
            parts,
            self.caches.take_released(),
            self._features,
            transport.feature_writer,
            least_chance=least_chance,
            learns=transport.description.learns,
        )
        for part in parts:
            cache = part.cache
            step.feature_rows += part.rows
            cache.length = step.expected_length[cache.cache_id] = part.stop
            if part.draft_length:
                step.draft_length[cache.cache_id] = part.draft_length
                cache.sequence.awaiting_draft = True
        self._pending.append(step)
        try:
            transport.send(request)
        except TransportError as error:
            self._lose_transport(error)

    def _seconds_left(self) -> float | None:
        """Return the seconds to the earliest deadline, or None if no sequence waits for a draft."""
        deadlines = [step.deadline for step in self._pending if step.deadline is not None]
        if not deadlines or not self.caches.awaiting:
            return None
        return max(0.0, min(deadlines) - self._clock())

    def _enforce_deadlines(self, times: DraftTimes) -> None:
        """Let sequences go on without drafts that are late; in the end the stream is lost."""
        now = self._clock()
        if now - self._pending[0].sent_at >= self._timeout_seconds:
            raise TransportError(f"no response within {self._timeout_seconds} s")
        missed = [s for s in self._pending if s.deadline is not None and now >= s.deadline]
        for step in missed:
            step.deadline, step.late = None, True
            for cache_id in step.draft_length:
                if (cache := self.caches.find(cache_id)) is not None:
                    cache.sequence.awaiting_draft = False
        if missed:
            times.missed += len(missed)
            self._asks_from = now + self._leaving_alone.pause_seconds()

    def _take(self, response: pb.DraftResponse, times: DraftTimes) -> None:
        """Take one response in, or raise `TransportError` if one before it is missing."""
        step = self._pending[0]
        if response.step_id < step.step_id:
            self._on_repair("repeated_response")
            return
        if response.step_id > step.step_id:
            raise TransportError(f"response {response.step_id} came before {step.step_id}")
        self._pending.popleft()
        if response.HasField("version"):
            self._note_version(response.version)
        self._count(step, response, times)
        self.caches.reconcile(response, step)

    def _note_version(self, version: pb.DrafterVersion) -> None:
        """Remember the weights with which a drafter that learns drafts from now on."""
        if self._transport is None:
            return
        description = self._transport.description
        self._transport.description = replace(
            description,
            version=version.number,
            fingerprint=version.fingerprint,
            trained=version.trained,
        )
        if description.version != version.number:
            logger.info("the drafter drafts with version %d", version.number)

    def _count(self, step: PendingStep, response: pb.DraftResponse, times: DraftTimes) -> None:
        computed = response.timings.compute_time.ToTimedelta().total_seconds()
        lengths = [len(draft.token_ids) for draft in response.drafts]
        drafts, longest = sum(length > 0 for length in lengths), max(lengths, default=0)
        if step.late:
            elapsed = self._clock() - step.sent_at
            times.late.append(LateResponse(drafts, longest, computed, elapsed))
            return
        times.responses += 1
        times.computed += computed
        times.drafts += drafts
        times.longest = max(times.longest, longest)
        if step.draft_length and self.description is not None:
            self._leaving_alone.reset()
            self._asks_from = -math.inf
            usual = len(step.draft_length) * self.description.block_size
            times.backlogged |= step.feature_rows > usual

    def _lose_transport(self, error: TransportError) -> None:
        logger.warning("drafting suspended: %s", error)
        self._on_repair("stream_broken")
        if self._transport is not None:
            self._link.lost(self._transport)
        self._transport = None
        self._forget_caches()

    def _forget_caches(self) -> None:
        self.caches.clear()
        self._pending.clear()
        # Step numbers start again with each stream.
        self._last_step_id = 0
