"""Shares of sequences in the tokens of a step, which the drafter or prompt lookup drafts.

The tokens that prompt lookup found for all sequences are taken in the order of their chances to be
right, as many as fill the step that is worth most. A step is padded up to a compiled size, so
filling it costs nothing, unless prompts wait for room.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from blockdraft_verifier.engine.acceptance import expected_longest
from blockdraft_verifier.engine.cost_model import NO_PROMPTS, ROUNDING, CostModel, WaitingPrompts


@dataclass(frozen=True, slots=True)
class Offer:
    """Tokens of one sequence that could be verified, by their chances."""

    # How likely the first 1, 2, ... tokens found by prompt lookup are all right.
    survival: list[float] = field(default_factory=list)
    # How likely the drafter drafts 1, 2, ... of the tokens it would be asked for.
    draft_survival: list[float] = field(default_factory=list)
    draft_gain: float = 0.0  # how many of these are expected to be accepted

    @property
    def draft_length(self) -> int:
        """Tokens the drafter would be asked for."""
        return len(self.draft_survival)

    @property
    def prefers_drafter(self) -> bool:
        """Whether the drafter is expected to be right more often; prompt lookup costs nothing."""
        return self.draft_gain > sum(self.survival)


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one sequence: tokens by prompt lookup, or tokens to ask the drafter for."""

    prompt_lookup: int = 0
    draft: int = 0


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
    """Return the shares that make the step worth most, for at least one sequence.

    With `must_draft` the step is a probe: sequences that do better with the drafter are drafted for
    even if the batch as a whole would do better without.
    """
    drafting = [offer.draft_length > 0 and offer.prefers_drafter for offer in offers]
    mixed, worth = _filled(costs, offers, drafting, prompts)
    if not any(drafting) or must_draft:
        return mixed
    free, worth_free = _filled(costs, offers, [False] * len(offers), prompts)
    return free if worth_free >= worth else mixed


def with_probes(shares: Sequence[Share], offers: Sequence[Offer]) -> list[Share]:
    """Give sequences without a share the tokens of prompt lookup, if these promise a token.

    So a step size that was slow once, because the machine was, is measured again. A text without
    repetitions has nothing to probe.
    """
    return [
        Share(len(offer.survival)) if share == Share() and sum(offer.survival) >= 1 else share
        for share, offer in zip(shares, offers, strict=True)
    ]


def _filled(
    costs: CostModel, offers: Sequence[Offer], drafting: Sequence[bool], prompts: WaitingPrompts
) -> tuple[list[Share], float]:
    """Fill a step with tokens by prompt lookup, for sequences that are not drafted for.

    Returns the shares and the worth of the step.
    """
    rows = len(offers)
    drafted = [offer for offer, is_drafting in zip(offers, drafting, strict=True) if is_drafting]
    survivals = [offer.draft_survival for offer in drafted]
    tokens = rows + math.ceil(sum(map(sum, survivals)) - ROUNDING)
    gain = float(rows) + sum(offer.draft_gain for offer in drafted)
    seconds = costs.drafts.seconds(len(drafted), expected_longest(survivals))
    # A later token of a sequence is never likelier than one before it.
    candidates = [
        (chance, index)
        for index, (offer, is_drafting) in enumerate(zip(offers, drafting, strict=True))
        if not is_drafting
        for chance in offer.survival
    ]
    candidates.sort(reverse=True)
    gains = list(accumulate((chance for chance, _ in candidates), initial=gain))

    def worth(count: int) -> float:
        return costs.worth(rows, tokens + count, gains[count], seconds, prompts)

    sizes = {
        min(size - tokens, len(candidates)) for size in costs.steps.sizes(rows) if size >= tokens
    }
    count = max(sorted({0, *sizes}), key=worth)
    lengths = [0] * rows
    for _, index in candidates[:count]:
        lengths[index] += 1
    shares = [
        Share(draft=offer.draft_length) if is_drafting else Share(length)
        for offer, is_drafting, length in zip(offers, drafting, lengths, strict=True)
    ]
    return shares, worth(count)
