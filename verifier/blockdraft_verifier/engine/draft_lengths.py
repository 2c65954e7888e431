"""How far to draft for each sequence, by what steps cost and what was accepted so far."""

from collections.abc import Iterable

from blockdraft_runtime.settings.verifier import DraftPolicy
from blockdraft_verifier.drafting.times import DraftTimes
from blockdraft_verifier.engine.cost_model import EXPLORE_EVERY_STEPS, AcceptanceEstimate, CostModel
from blockdraft_verifier.scheduling.scheduler import Progress, Row
from blockdraft_verifier.scheduling.sequence import Sequence


class DraftLengths:
    """Learns from every step, and says for whom to draft how many tokens; pure Python.

    Attributes:
        costs: What steps cost; None before anything was measured.
    """

    def __init__(self, policy: DraftPolicy) -> None:
        """Know nothing yet.

        Args:
            policy: "adaptive" drafts as far as it pays, "fixed" as far as allowed.
        """
        self.costs: CostModel | None = None
        self._policy = policy
        self._overall = AcceptanceEstimate()
        self._estimates: dict[Sequence, AcceptanceEstimate] = {}
        self._steps = 0

    def forget_acceptance(self) -> None:
        """Forget what was accepted of another drafter."""
        self._overall = AcceptanceEstimate()

    def add(self, sequence: Sequence) -> None:
        """Expect of a new sequence what was seen of all others."""
        self._estimates[sequence] = self._overall.successor()

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence."""
        self._estimates.pop(sequence, None)

    def observe_drafting(self, times: DraftTimes) -> None:
        """Learn what drafting cost."""
        if self.costs is None:
            return
        # What had to be caught up first is not what drafting costs.
        if times.computed and not times.backlogged:
            self.costs.observe_transport(times.transport)
            # Several answers were computed apart; their sum is the time of no batch.
            if times.answers == 1 and times.proposals:
                self.costs.observe_draft(times.proposals, times.computed)
        for late in times.late:
            self.costs.observe_transport(max(0.0, late.elapsed - late.computed))
            if late.proposals:
                self.costs.observe_draft(late.proposals, late.computed)

    def observe_step(self, rows: Iterable[Row], seconds: float) -> None:
        """Learn what a step over `rows` took."""
        self._steps += 1
        if self.costs is not None:
            lengths = [len(row.token_ids) for row in rows]
            self.costs.observe_verification(len(lengths), sum(lengths), seconds)

    def observe_acceptance(self, progress: Iterable[Progress]) -> None:
        """Learn what a step accepted."""
        for change in progress:
            if change.new_tokens and change.row.draft_count:
                for estimate in (self._estimates[change.row.sequence], self._overall):
                    estimate.update(change.row.draft_count, change.accepted)

    def wanted(self, running: Iterable[Sequence], block_size: int) -> list[tuple[Sequence, int]]:
        """Return whom to ask the drafter about, and for how many tokens.

        Args:
            running: All sequences that are being decoded.
            block_size: Of the drafter.

        Returns:
            Sequences and draft lengths; 0 where new features shall only be sent.
        """
        ready = [
            sequence
            for sequence in running
            if sequence.finish_reason is None
            and sequence.draftable
            and not sequence.awaiting_draft
            and sequence.proposal is None
            and sequence.request.max_draft_tokens != 0
        ]
        decoding = [sequence for sequence in ready if sequence.decoding]
        wanted = [(sequence, 0) for sequence in ready if not sequence.decoding]
        length = self._length(decoding, block_size - 1)
        if length > 0:
            wanted += [(sequence, _limited(sequence, length)) for sequence in decoding]
        return wanted

    def wait_seconds(self, wanted: Iterable[tuple[Sequence, int]]) -> float:
        """Return how long it can pay to wait for what is asked of the drafter.

        Args:
            wanted: What `wanted` returned.
        """
        asked = [(self._estimates[sequence], length) for sequence, length in wanted if length]
        if not asked or self.costs is None:
            return 0.0
        estimates = [estimate for estimate, _ in asked]
        length = max(length for _, length in asked)
        return self.costs.wait_seconds(estimates, length, must_pay=self._policy == "adaptive")

    def _length(self, sequences: list[Sequence], most: int) -> int:
        """Return how many tokens to draft for each of `sequences`, at most `most`."""
        if not sequences or self.costs is None:
            return 0
        if self._policy == "fixed" or self._steps % EXPLORE_EVERY_STEPS == 0:
            return most
        estimates = [self._estimates[sequence] for sequence in sequences]
        return self.costs.draft_length(estimates, self._overall, most)


def _limited(sequence: Sequence, length: int) -> int:
    allowed = sequence.request.max_draft_tokens
    # The last token of an answer is the target's own: nothing needs to be drafted for it.
    length = min(length, max(0, sequence.remaining - 1))
    return length if allowed is None else min(length, allowed)
