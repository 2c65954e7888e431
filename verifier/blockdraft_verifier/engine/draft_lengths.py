"""What to draft for each sequence, by what steps cost and what was accepted so far."""

from collections.abc import Collection, Iterable

from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.drafting.sync import DraftTimes
from blockdraft_verifier.engine.acceptance import AcceptanceEstimate
from blockdraft_verifier.engine.cost_model import (
    EXPLORE_EVERY_STEPS,
    LEAST_CHANCE,
    TRY_SHARE,
    TRY_STEPS,
    CostModel,
    WaitingPrompts,
)
from blockdraft_verifier.engine.lookups import Lookups
from blockdraft_verifier.engine.source_choice import Offer, Share, fastest, longest, with_tries
from blockdraft_verifier.scheduling.scheduler import Progress, Row
from blockdraft_verifier.scheduling.sequence import DraftSource, Proposal, Sequence


class DraftLengths:
    """Learns from every step, and says for whom to draft how many tokens; pure Python.

    Attributes:
        costs: What steps cost; None before anything was measured.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Know nothing yet."""
        self.costs: CostModel | None = None
        self._policy = settings.draft_policy
        self._prompt_slowdown = settings.prompt_slowdown
        self._lookup_block = settings.lookup_block if settings.lookup else 1
        self._max_block = 1
        self._lookups = Lookups()
        self._overall = AcceptanceEstimate()
        self._estimates: dict[Sequence, AcceptanceEstimate] = {}
        self._steps = 0
        # What tries may cost by now.
        self._credit_seconds = 0.0

    @property
    def acceptance(self) -> list[float]:
        """How often a token at each position is right, given that those before it are."""
        return list(self._overall.by_position)

    @property
    def least_chance(self) -> float:
        """How likely it has to be that all of a draft is right for the drafter to go on with it."""
        return 0.0 if self._policy == "fixed" else LEAST_CHANCE

    def use_blocks(self, drafter_block: int) -> int:
        """Draft within blocks of a new size.

        Returns:
            Most tokens of a row, the anchor included.
        """
        self._max_block = max(drafter_block, self._lookup_block)
        return self._max_block

    def forget_acceptance(self) -> None:
        """Forget what was accepted of another drafter."""
        self._overall = AcceptanceEstimate()

    def add(self, sequence: Sequence) -> None:
        """Expect of a new sequence what was seen of all others."""
        self._estimates[sequence] = self._overall.successor()
        if self._lookup_block > 1 and sequence.request.lookup:
            self._lookups.add(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence."""
        self._estimates.pop(sequence, None)
        self._lookups.forget(sequence)

    def observe_drafting(self, times: DraftTimes) -> None:
        """Learn what drafting cost."""
        if self.costs is None:
            return
        # What had to be caught up first is not what drafting costs, nor is what only appends.
        if times.proposals and not times.backlogged:
            self.costs.drafts.observe_transport(times.transport)
            # Several answers were computed apart; their sum is the time of no batch.
            if times.answers == 1 and times.proposals:
                self.costs.drafts.observe(times.proposals, times.longest, times.computed)
        for late in times.late:
            self.costs.drafts.observe_transport(max(0.0, late.elapsed - late.computed))
            if late.proposals:
                self.costs.drafts.observe(late.proposals, late.longest, late.computed)

    def observe_step(self, rows: Collection[Row], seconds: float) -> None:
        """Learn what a step over `rows` took."""
        self._steps += 1
        allowed = TRY_SHARE * seconds
        self._credit_seconds = min(self._credit_seconds + allowed, TRY_STEPS * allowed)
        if self.costs is not None:
            lengths = [len(row.token_ids) for row in rows]
            prompts = (row.start + row.known_count for row in rows if row.known_count > 1)
            context = max(prompts, default=0)
            self.costs.steps.observe(len(lengths), sum(lengths), seconds, context)

    def observe_acceptance(self, progress: Iterable[Progress]) -> None:
        """Learn what a step accepted."""
        for change in progress:
            drafted = change.row.draft_count and change.row.source is DraftSource.DRAFTER
            if change.new_tokens and drafted:
                for estimate in (self._estimates[change.row.sequence], self._overall):
                    estimate.update(
                        change.row.draft_count,
                        change.accepted,
                        ended_early=change.row.ended_early,
                    )

    def prompt_room(self, rows: int, tokens: int, context: int) -> int | None:
        """Return most prompt tokens beside decoding sequences; None while that is not known."""
        if self.costs is None:
            return None
        return self.costs.prompt_room(rows, tokens, self._prompt_slowdown, context)

    def wanted(
        self, running: list[Sequence], block_size: int, prompt_tokens: int
    ) -> list[tuple[Sequence, int]]:
        """Propose what lookup found where that is best, and return what to ask the drafter.

        Returns:
            Sequences and draft lengths; 0 where new features shall only be sent.
        """
        self._lookups.index(running)
        ready = [
            sequence
            for sequence in running
            if sequence.finish_reason is None
            and not sequence.awaiting_draft
            and sequence.proposal is None
            and sequence.request.max_draft_tokens != 0
        ]
        # Contexts are kept up ahead of drafts, but not those of a drafter that is hardly asked.
        ahead = self._policy == "fixed" or not self._overall.hopeless
        wanted = [(s, 0) for s in ready if ahead and s.draftable and not s.decoding]
        decoding = [sequence for sequence in ready if sequence.decoding]
        if self.costs is None:
            return wanted
        draftable = [sequence for sequence in decoding if sequence.draftable]
        context = max((s.committed for s in running if not s.decoding), default=0)
        prompts = WaitingPrompts(prompt_tokens, self._prompt_slowdown, context)
        length = self._length(draftable, block_size - 1, prompts)
        offers = [self._offer(sequence, length) for sequence in decoding]
        shares = self._shares(self.costs, offers, draftable, length, prompts)
        for sequence, share in zip(decoding, shares, strict=True):
            if share.lookup:
                tokens = self._lookups.continuation(sequence, share.lookup)
                sequence.proposal = Proposal(tokens, source=DraftSource.LOOKUP)
            # With nothing to draft its context is kept up.
            if sequence.draftable and length > 0:
                wanted.append((sequence, share.draft))
        return wanted

    def wait_seconds(self, wanted: Iterable[tuple[Sequence, int]]) -> float:
        """Return how long it can pay to wait for what is asked of the drafter."""
        asked = [(self._estimates[sequence], length) for sequence, length in wanted if length]
        if not asked or self.costs is None:
            return 0.0
        estimates = [estimate for estimate, _ in asked]
        length = max(length for _, length in asked)
        return self.costs.wait_seconds(estimates, length, must_pay=self._policy == "adaptive")

    def _offer(self, sequence: Sequence, length: int) -> Offer:
        """Return what lookup and the drafter, asked for `length` tokens, have for a sequence."""
        found = self._lookups.survival(sequence, _limited(sequence, self._max_block - 1))
        if not sequence.draftable:
            return Offer(found)
        drafted, estimate = _limited(sequence, length), self._estimates[sequence]
        return Offer(found, estimate.lasting(drafted), estimate.accepted_of(drafted))

    def _shares(
        self,
        costs: CostModel,
        offers: list[Offer],
        draftable: list[Sequence],
        length: int,
        prompts: WaitingPrompts,
    ) -> list[Share]:
        """Return which offers are taken, the drafter's being for `length` tokens."""
        if not any(offer.survival for offer in offers):
            return [Share(draft=offer.draft_length) for offer in offers]
        if self._policy == "fixed":
            return longest(offers)
        # Drafting that is not expected to pay is a try, which lookup must not prevent for ever.
        estimates = [self._estimates[sequence] for sequence in draftable]
        must_draft = length > 0 and (
            self._explores or not costs.best_draft_length(estimates, length, prompts=prompts)
        )
        shares = fastest(costs, offers, must_draft=must_draft, prompts=prompts)
        return with_tries(shares, offers) if self._explores else shares

    @property
    def _explores(self) -> bool:
        """Whether what does not seem to pay is tried in this step."""
        return self._steps % EXPLORE_EVERY_STEPS == 0

    def _length(self, sequences: list[Sequence], most: int, prompts: WaitingPrompts) -> int:
        """Return how many tokens to ask the drafter for, for each of `sequences`, at most `most`.

        Lookup is left out of account.
        """
        if not sequences or self.costs is None or most < 1:
            return 0
        if self._policy == "fixed":
            return most
        estimates = [self._estimates[sequence] for sequence in sequences]
        best = tried = self.costs.best_draft_length(estimates, most, prompts=prompts)
        if self._explores:
            tried = most
        elif best == 0:
            tried = self.costs.try_length(estimates, self._overall, most, prompts)
        if tried == best:
            return best
        lost = self.costs.lost_seconds(estimates, tried, best, prompts)
        if lost > self._credit_seconds:
            return best
        self._credit_seconds -= lost
        return tried


def _limited(sequence: Sequence, length: int) -> int:
    allowed = sequence.request.max_draft_tokens
    # The last token of an answer is the target's own: nothing needs to be drafted for it.
    length = min(length, max(0, sequence.remaining - 1))
    return length if allowed is None else min(length, allowed)
