"""Which sequence's next tokens are proposed by lookup, which by the drafter, and how many.

The step's tokens are what all of them share. So the tokens found by lookup, of all sequences, are
taken in order of how likely they are to be right, as many as fill the step that is worth most: a
step is padded up to a compiled size, and filling it costs nothing, unless prompts wait for room.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from blockdraft_verifier.engine.acceptance import expected_longest
from blockdraft_verifier.engine.cost_model import NO_PROMPTS, CostModel, WaitingPrompts


@dataclass(frozen=True, slots=True)
class Offer:
    """What could be verified of one sequence.

    Attributes:
        survival: How likely the first 1, 2, ... tokens found by lookup are all right.
        draft_lasting: How likely the drafter drafts 1, 2, ... of the tokens it would be asked for.
        draft_gain: How many of these are expected to be accepted.
    """

    survival: list[float] = field(default_factory=list)
    draft_lasting: list[float] = field(default_factory=list)
    draft_gain: float = 0.0

    @property
    def draft_length(self) -> int:
        """Tokens the drafter would be asked for."""
        return len(self.draft_lasting)

    @property
    def prefers_drafter(self) -> bool:
        """Whether the drafter is expected to be right more often; lookup costs nothing."""
        return self.draft_gain > sum(self.survival)


@dataclass(frozen=True, slots=True)
class Share:
    """What one sequence gets: tokens found by lookup, or tokens to ask the drafter for."""

    lookup: int = 0
    draft: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    shares: list[Share]
    worth: float


def longest(offers: Sequence[Offer]) -> list[Share]:
    """Return the better source of each sequence, with all it offers."""
    return [
        Share(draft=offer.draft_length) if offer.prefers_drafter else Share(len(offer.survival))
        for offer in offers
    ]


def fastest(
    costs: CostModel,
    offers: Sequence[Offer],
    *,
    must_draft: bool,
    prompts: WaitingPrompts = NO_PROMPTS,
) -> list[Share]:
    """Return what makes the step worth most."""
    drafting = [offer.draft_length > 0 and offer.prefers_drafter for offer in offers]
    mixed = _plan(costs, offers, drafting, prompts)
    if not any(drafting) or must_draft:
        return mixed.shares
    free = _plan(costs, offers, [False] * len(offers), prompts)
    return max(free, mixed, key=lambda plan: plan.worth).shares


def with_tries(shares: Sequence[Share], offers: Sequence[Offer]) -> list[Share]:
    """Return shares in which those who would get nothing verify what promises at least a token.

    A step size that was slow once, because the machine was, is measured again so; a text without
    repetitions has nothing to try.
    """
    return [
        Share(len(offer.survival)) if share == Share() and sum(offer.survival) >= 1 else share
        for share, offer in zip(shares, offers, strict=True)
    ]


def _plan(
    costs: CostModel, offers: Sequence[Offer], drafting: Sequence[bool], prompts: WaitingPrompts
) -> _Plan:
    """Fill up a step in which some sequences are drafted for with what lookup found for others."""
    rows = len(offers)
    drafted = [offer for offer, drafts in zip(offers, drafting, strict=True) if drafts]
    lasting = [offer.draft_lasting for offer in drafted]
    tokens = rows + math.ceil(sum(map(sum, lasting)))
    gain = float(rows) + sum(offer.draft_gain for offer in drafted)
    seconds = costs.drafts.seconds(len(drafted), expected_longest(lasting))
    # A later token of a sequence is never likelier than one before it.
    found = [
        (alive, index)
        for index, (offer, drafts) in enumerate(zip(offers, drafting, strict=True))
        if not drafts
        for alive in offer.survival
    ]
    found.sort(reverse=True)
    gains = list(accumulate((alive for alive, _ in found), initial=gain))

    def worth(count: int) -> float:
        return costs.worth(rows, tokens + count, gains[count], seconds, prompts)

    sizes = {min(size - tokens, len(found)) for size in costs.steps.sizes(rows) if size >= tokens}
    count = max(sorted({0, *sizes}), key=worth)
    taken = [0] * rows
    for _, index in found[:count]:
        taken[index] += 1
    shares = [
        Share(draft=offer.draft_length) if drafts else Share(lookup)
        for offer, drafts, lookup in zip(offers, drafting, taken, strict=True)
    ]
    return _Plan(shares, worth(count))
