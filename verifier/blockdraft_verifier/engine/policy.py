"""The drafts of each sequence: how many tokens, from which source, and when as a probe.

`DraftLengths.decide` decides after each step for the next one. All decoding sequences get one draft
length, the one that the cost model finds best without prompt lookup. Then the tokens that prompt
lookup found compete with it (`shares`). Every step teaches what the decision rests on:

| What | Where | Learned |
|---|---|---|
| how often the drafter is right | `AcceptanceEstimate` | of each sequence, and of all |
| how often prompt lookup is right | `Repetitions` | of each sequence, and of all |
| what a step takes | `StepTimes` | of each shape, and of the machine |
| what a draft takes | `DraftCosts` | of each number of sequences |
"""

import sys
from collections.abc import Collection, Iterable

from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.drafting.sync import DraftTimes
from blockdraft_verifier.engine.acceptance import PRIOR_ACCEPTANCE, AcceptanceEstimate
from blockdraft_verifier.engine.cost_model import CostModel, WaitingPrompts
from blockdraft_verifier.engine.repetitions import Repetitions
from blockdraft_verifier.engine.shares import Offer, Share, fastest, longest, with_probes
from blockdraft_verifier.scheduling.row import Row, SequenceProgress
from blockdraft_verifier.scheduling.sequence import DraftSource, TokenSequence

# Drafting that does not pay is probed this often, in steps: text changes.
PROBE_EVERY_STEPS = 64
# Probes may cost such a share of the time, so they are rarer where they are dear.
PROBE_SHARE = 0.02
# The credit for probes grows for so many steps at most, however long there was no probe.
PROBE_STEPS = 1024
# A drafter that makes a pass for each token ends a draft once the chance that all of it is right
# falls below this: about what a pass takes of the time of a gained token (docs/adr/0042).
LEAST_CHANCE = 0.15


class DraftLengths:
    """Learns from every step, and returns how many tokens to draft for each sequence; pure Python.

    With the policy "adaptive" drafts are as long as it pays, with "fixed" as long as allowed.
    `costs` is None before anything was measured.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Know nothing yet."""
        self.costs: CostModel | None = None
        self._policy = settings.draft_policy
        self._prompt_slowdown = settings.prompt_slowdown
        self._prompt_lookup_block = settings.prompt_lookup_block if settings.prompt_lookup else 1
        self._most_tokens = settings.rollback_tokens or sys.maxsize
        self._max_block = 1
        self._repetitions = Repetitions(settings.recent_completions)
        self._overall = AcceptanceEstimate()
        # The same of outputs that have a grammar.
        self._constrained = AcceptanceEstimate()
        self._drafts: dict[TokenSequence, AcceptanceEstimate] = {}
        # Sequences for which the drafter was not asked when it last could have been: all, or none.
        self._undrafted = 0
        self._steps = 0
        # Seconds that probes may cost by now.
        self._credit_seconds = 0.0

    def decide(
        self, running: list[TokenSequence], block_size: int, prompt_tokens: int
    ) -> list[tuple[TokenSequence, int]]:
        """Draft by prompt lookup where that is best, and return the drafter's draft lengths.

        A length of 0 sends new features only. `block_size` is the drafter's, 1 if there is none;
        `prompt_tokens` are still to be computed of prompts.
        """
        self._repetitions.index(running)
        ready = [
            sequence
            for sequence in running
            if sequence.finish_reason is None
            and not sequence.awaiting_draft
            and sequence.draft is None
            and sequence.request.max_draft_tokens != 0
        ]
        # Draft KV caches are filled ahead of drafts, but not where the drafter is hardly asked.
        ahead = self._policy == "fixed" or not self._overall.hopeless
        draft_lengths = [(s, 0) for s in ready if ahead and s.draftable and not s.decoding]
        decoding = [sequence for sequence in ready if sequence.decoding]
        if self.costs is None:
            return draft_lengths
        context = max((s.committed for s in running if not s.decoding), default=0)
        prompts = WaitingPrompts(prompt_tokens, self._prompt_slowdown, context)
        estimates = [self._drafts[sequence] for sequence in decoding if sequence.draftable]
        longest_draft = min(block_size, self._most_tokens) - 1
        length, is_probe = self._length(self.costs, estimates, longest_draft, prompts)
        offers = [self._offer(sequence, length) for sequence in decoding]
        shares = self._shares(self.costs, offers, prompts, must_draft=is_probe)
        for sequence, share in zip(decoding, shares, strict=True):
            if share.prompt_lookup:
                sequence.draft = self._repetitions.draft(sequence, share.prompt_lookup)
            # With nothing to draft, its draft KV cache is kept up.
            if sequence.draftable and length > 0:
                draft_lengths.append((sequence, share.draft))
        return draft_lengths

    def _length(
        self,
        costs: CostModel,
        estimates: list[AcceptanceEstimate],
        max_length: int,
        prompts: WaitingPrompts,
    ) -> tuple[int, bool]:
        """Return how many tokens to ask the drafter for, and whether as a probe.

        Prompt lookup is not considered. A probe is made to learn more, although it may not pay.
        """
        if not estimates or max_length < 1:
            return 0, False
        if self._policy == "fixed":
            return max_length, False
        steps = costs.expected_steps(estimates, max_length, prompts)
        best = chosen = steps.best()
        self._undrafted = 0 if best else len(estimates)
        if self._probes_now:
            chosen = max_length
        elif best == 0:
            chosen = costs.probe_length(estimates, self._overall, max_length, prompts)
        if chosen != best:
            lost = steps.lost_seconds(chosen, best)
            if lost > self._credit_seconds:
                chosen = best
            else:
                self._credit_seconds -= lost
        return chosen, chosen > 0 and (self._probes_now or chosen != best)

    def _offer(self, sequence: TokenSequence, length: int) -> Offer:
        """Return the chances of tokens by prompt lookup, and of `length` from the drafter.

        Nothing needs to be drafted where the grammar forces the next tokens.
        """
        survival = self._repetitions.search(sequence, _limited(sequence, self._max_block - 1))
        if length and sequence.grammar is not None and sequence.grammar.forces(length):
            return Offer()
        if not sequence.draftable:
            return Offer(survival)
        length, estimate = _limited(sequence, length), self._drafts[sequence]
        return Offer(survival, estimate.draft_survival(length), estimate.accepted_of(length))

    def _shares(
        self, costs: CostModel, offers: list[Offer], prompts: WaitingPrompts, *, must_draft: bool
    ) -> list[Share]:
        """Return the share of each offer; prompt lookup must not keep the drafter from probes."""
        if not any(offer.survival for offer in offers):
            return [Share(draft=offer.draft_length) for offer in offers]
        if self._policy == "fixed":
            return longest(offers)
        shares = fastest(costs, offers, must_draft=must_draft, prompts=prompts)
        return with_probes(shares, offers) if self._probes_now else shares

    def can_draft(self, sequence: TokenSequence, *, attached: bool) -> bool:
        """Whether something can be drafted for a sequence, with a drafter or without."""
        request = sequence.request
        looks_up = request.prompt_lookup and self._prompt_lookup_block > 1
        return request.max_draft_tokens != 0 and (looks_up or (attached and sequence.draftable))

    @property
    def _probes_now(self) -> bool:
        """Whether this step probes what does not seem to pay."""
        return self._steps % PROBE_EVERY_STEPS == 0

    @property
    def pause_reason(self) -> str:
        """Why the drafter is not asked, in a few words; empty if it is."""
        if not self._undrafted:
            return ""
        first = next(iter(self.acceptance), PRIOR_ACCEPTANCE)
        words = f"drafts for {self._undrafted} at once take longer than they gain"
        return f"{words}: {first:.0%} begin right"

    @property
    def acceptance(self) -> list[float]:
        """How often a token at each position is right, given that those before it are."""
        return list(self._overall.by_position)

    @property
    def least_chance(self) -> float:
        """Least chance that all of a draft is right for the drafter to go on with it."""
        return 0.0 if self._policy == "fixed" else LEAST_CHANCE

    def wait_seconds(self, draft_lengths: Iterable[tuple[TokenSequence, int]]) -> float:
        """Return the seconds for which it can pay to wait for drafts of these lengths."""
        drafts = [(self._drafts[sequence], length) for sequence, length in draft_lengths if length]
        if not drafts or self.costs is None:
            return 0.0
        estimates = [estimate for estimate, _ in drafts]
        length = max(length for _, length in drafts)
        return self.costs.wait_seconds(estimates, length, must_pay=self._policy == "adaptive")

    def prompt_room(self, rows: int, tokens: int, context: int) -> int | None:
        """Return the most prompt tokens beside decoding sequences; None while that is unknown."""
        if self.costs is None:
            return None
        return self.costs.prompt_room(rows, tokens, self._prompt_slowdown, context)

    def use_blocks(self, drafter_block: int) -> int:
        """Draft within blocks of a new size, 1 without a drafter; return a row's most tokens."""
        self._max_block = self.most_tokens(drafter_block)
        return self._max_block

    def most_tokens(self, drafter_block: int) -> int:
        """Return the most tokens of a row that is drafted for within blocks of this size."""
        return min(max(drafter_block, self._prompt_lookup_block), self._most_tokens)

    def forget_acceptance(self) -> None:
        """Forget what was accepted of another drafter."""
        self._overall, self._constrained = AcceptanceEstimate(), AcceptanceEstimate()

    def add(self, sequence: TokenSequence) -> None:
        """Start the estimates of a new sequence from those of all others like it."""
        self._drafts[sequence] = self._all_like(sequence).successor()
        # The completion of a request that is decoded plainly is not remembered either.
        if self.can_draft(sequence, attached=False):
            self._repetitions.add(sequence)

    def _all_like(self, sequence: TokenSequence) -> AcceptanceEstimate:
        return self._overall if sequence.grammar is None else self._constrained

    def forget(self, sequence: TokenSequence) -> None:
        """Forget a sequence."""
        self._drafts.pop(sequence, None)
        self._repetitions.forget(sequence)

    def observe_drafting(self, times: DraftTimes) -> None:
        """Learn what drafting cost."""
        if self.costs is None:
            return
        costs = self.costs.drafts
        # Catching up first, or appending only, does not show what drafting costs.
        if times.drafts and not times.backlogged:
            costs.observe_transport(times.transport)
            # Several responses were computed apart; their sum is the time of no batch.
            if times.responses == 1:
                costs.observe(times.drafts, times.longest, times.computed)
        for late in times.late:
            costs.observe_transport(max(0.0, late.elapsed - late.computed))
            if late.drafts:
                costs.observe(late.drafts, late.longest, late.computed)

    def observe_step(self, rows: Collection[Row], seconds: float) -> None:
        """Learn what a step over `rows` took."""
        self._steps += 1
        allowed = PROBE_SHARE * seconds
        self._credit_seconds = min(self._credit_seconds + allowed, PROBE_STEPS * allowed)
        if self.costs is not None:
            tokens = sum(len(row.token_ids) for row in rows)
            prompts = (row.start + row.known_count for row in rows if row.known_count > 1)
            self.costs.steps.observe(len(rows), tokens, seconds, max(prompts, default=0))

    def observe_acceptance(self, progress: Iterable[SequenceProgress]) -> None:
        """Learn what a step accepted."""
        for change in progress:
            row = change.row
            drafted = row.draft_count or row.discarded
            if change.new_tokens and drafted and row.source is DraftSource.DRAFTER:
                for estimate in (self._drafts[row.sequence], self._all_like(row.sequence)):
                    estimate.update(
                        row.draft_count,
                        change.accepted,
                        ended_early=row.ended_early,
                        forced=row.forced,
                    )


def _limited(sequence: TokenSequence, length: int) -> int:
    allowed = sequence.request.max_draft_tokens
    if sequence.grammar is not None and sequence.grammar.alone:
        return 0
    # The last token of a completion is the target's own: nothing needs to be drafted for it.
    length = min(length, max(0, sequence.remaining - 1))
    return length if allowed is None else min(length, allowed)
