"""Which sequence's next tokens are proposed by lookup, which by the drafter, and how many.

The step's tokens are what all of them share. So the tokens found by lookup, of all sequences, are
taken in order of how likely they are to be right, as many as fill the step that is worth most: a
step is padded up to a compiled size, and filling it costs nothing, unless prompts wait for room.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from blockdraft_verifier.engine.cost_model import (
    NO_PROMPTS,
    CostModel,
    Spread,
    WaitingPrompts,
    all_alike,
)

# Stands for all sequences that are drafted for, in the order of tokens.
_DRAFTED = -1


@dataclass(frozen=True, slots=True)
class Offer:
    """What could be verified of one sequence.

    Attributes:
        survival: How likely the first 1, 2, ... tokens found by lookup are all right.
        drafted: How likely the first 1, 2, ... tokens that the drafter would be asked for are all
            right, on average.
    """

    survival: list[float] = field(default_factory=list)
    drafted: list[float] = field(default_factory=list)

    @property
    def draft_length(self) -> int:
        """Tokens the drafter would be asked for."""
        return len(self.drafted)

    @property
    def draft_gain(self) -> float:
        """How many of these are expected to be accepted."""
        return float(sum(self.drafted))

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
    spread: Spread = all_alike,
) -> list[Share]:
    """Return what makes the step worth most.

    Args:
        costs: What steps and drafts cost.
        offers: Of all sequences of the batch; at least one.
        must_draft: Whether sequences that do better with the drafter are drafted for even if the
            batch as a whole would do better without: the drafter is to be tried.
        prompts: What waits for room in the step.
        spread: How drafts differ.
    """
    drafting = [offer.draft_length > 0 and offer.prefers_drafter for offer in offers]
    mixed = _plan(costs, offers, drafting, prompts, spread)
    if not any(drafting) or must_draft:
        return mixed.shares
    free = _plan(costs, offers, [False] * len(offers), prompts, spread)
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
    costs: CostModel,
    offers: Sequence[Offer],
    drafting: Sequence[bool],
    prompts: WaitingPrompts,
    spread: Spread,
) -> _Plan:
    """Fill a step with what is drafted for some sequences and what lookup found for others."""
    rows = len(offers)
    drafted = [offer for offer, drafts in zip(offers, drafting, strict=True) if drafts]
    longest_draft = max((offer.draft_length for offer in drafted), default=0)
    tokens, gain = rows, float(rows)
    expected = spread(len(drafted), _average(drafted, longest_draft)) if drafted else None
    if expected is None:
        tokens += sum(offer.draft_length for offer in drafted)
        gain += sum(offer.draft_gain for offer in drafted)
    seconds = costs.drafts.seconds(len(drafted), longest_draft)
    # A later token of a sequence is never likelier than one before it.
    found = [
        (alive, index)
        for index, (offer, drafts) in enumerate(zip(offers, drafting, strict=True))
        if not drafts
        for alive in offer.survival
    ]
    if expected is not None:
        found += [(alive, _DRAFTED) for alive in expected.tolist()]
    found.sort(reverse=True)
    filled = costs.fill(rows, tokens, gain, seconds, [alive for alive, _ in found], prompts)
    taken = [0] * rows
    for _, index in found[: filled.count]:
        if index != _DRAFTED:
            taken[index] += 1
    shares = [
        Share(draft=offer.draft_length) if drafts else Share(lookup)
        for offer, drafts, lookup in zip(offers, drafting, taken, strict=True)
    ]
    return _Plan(shares, filled.worth)


def _average(drafted: Sequence[Offer], longest: int) -> Float[np.ndarray, " positions"]:
    """Return how likely all tokens up to each position are right; short drafts have no more."""
    padded = [offer.drafted + [0.0] * (longest - offer.draft_length) for offer in drafted]
    return np.asarray(np.mean(padded, axis=0))
