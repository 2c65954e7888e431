"""How many tokens to draft: the number that maximizes expected tokens per second.

While prompts wait for room in the steps, their tokens count too: a drafted token takes the place of
a prompt token, so that somebody else's first token comes later.

Measured at warm-up: the seconds of a verification step in each bucket (the K-flat curve) and of a
draft step (`costs`). Measured while serving: both again, and how often drafted tokens are
right. No I/O, no clock.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.engine.acceptance import (
    AcceptanceEstimate,
    ExpectedDrafts,
    expected_drafts,
)
from blockdraft_verifier.engine.costs import DraftCosts, StepTimes

# What is lost to rounding in sums of probabilities.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ExpectedSteps:
    """Steps by how many tokens are asked for of each sequence.

    Attributes:
        tokens: Tokens verified of all sequences.
        gains: Tokens gained.
        verify_seconds: What verification takes.
        draft_seconds: What drafting took before.
    """

    tokens: Float[np.ndarray, " lengths"]
    gains: Float[np.ndarray, " lengths"]
    verify_seconds: Float[np.ndarray, " lengths"]
    draft_seconds: Float[np.ndarray, " lengths"]

    @property
    def seconds(self) -> Float[np.ndarray, " lengths"]:
        """What steps take."""
        seconds: Float[np.ndarray, " lengths"] = self.verify_seconds + self.draft_seconds
        return seconds


def expected_steps(
    estimates: Sequence[AcceptanceEstimate],
    most: int,
    verify_seconds: Callable[[int, int], float],
    draft_seconds: Callable[[int, float], float],
) -> ExpectedSteps:
    """Return what is expected of steps with drafts of 0, 1, ... `most` tokens."""
    rows, drafts = len(estimates), expected_drafts(estimates, most)
    tokens = rows + drafts.drafted
    if rows == 1:
        verified = _verified_alone(drafts, verify_seconds)
    else:
        # The drafts of several sequences have together about as many tokens as expected.
        sizes = np.ceil(tokens - ROUNDING).astype(int)
        verified = np.array([verify_seconds(rows, size) for size in sizes.tolist()])
    drafted = np.array([draft_seconds(rows, passes) for passes in drafts.passes.tolist()])
    return ExpectedSteps(tokens, rows + drafts.accepted, verified, drafted)


def _verified_alone(
    drafts: ExpectedDrafts, verify_seconds: Callable[[int, int], float]
) -> Float[np.ndarray, " lengths"]:
    """Return the seconds of verifying a lone sequence's drafts of 0, 1, ... tokens.

    A draft that ends early is verified in a smaller step: a token takes what it makes the step
    longer, as often as there is one.
    """
    took = np.array([verify_seconds(1, 1 + length) for length in range(len(drafts.drafted))])
    longer = np.diff(drafts.drafted) * np.diff(took)
    return np.concatenate([took[:1], took[0] + np.cumsum(longer)])


# Drafting that does not pay is tried again this often, in steps: text changes.
EXPLORE_EVERY_STEPS = 64
# Tries may cost such a share of the time, so they are rarer where they are dear,
TRY_SHARE = 0.02
# of that of so many steps at most, however long there was none.
TRY_STEPS = 1024
# A sequence gets so many proposals before the others' acceptance can decide against drafting: text
# differs, and one that is never drafted for can never show it, unless all others were hopeless.
FIRST_PROPOSALS = 4
# Where a drafter makes a pass for each token, a draft ends once it is less likely than this that
# all of it is right: about what a pass takes of the time of a gained token (docs/adr/0042).
LEAST_CHANCE = 0.15
# A proposal is waited for so many times as long as it usually takes,
WAIT_FACTOR = 2.0
# and in any case for such a share of a plain step, which nobody notices.
WAIT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class WaitingPrompts:
    """What is to be computed of prompts, beside the sequences that are decoding.

    Attributes:
        tokens: How many are left.
        slowdown: How many times as long they may make a step; at least 1.
        context: Most that were computed of one of them before.
    """

    tokens: int = 0
    slowdown: float = 1.0
    context: int = 0


NO_PROMPTS = WaitingPrompts()


class CostModel:
    """Seconds of verification and drafting, from measurements.

    Attributes:
        steps: Of verification.
        drafts: Of drafting; another one with each drafter.
    """

    def __init__(
        self,
        verify_seconds: Mapping[Bucket, float],
        context_seconds: Mapping[Bucket, float] = MappingProxyType({}),
    ) -> None:
        """Use what was measured of each compiled bucket; see `StepTimes`."""
        self.steps = StepTimes(verify_seconds, context_seconds)
        self.drafts = DraftCosts()

    def milliseconds(self) -> dict[str, object]:
        """Return what is known now of the time that steps take, for the person who asks."""
        return {
            "verify_by_rows_x_tokens": {
                f"{bucket.rows}x{bucket.tokens}": round(1e3 * seconds, 3)
                for bucket, seconds in self.steps.by_bucket.items()
            },
            "verify_per_1000_context_tokens": {
                f"{bucket.rows}x{bucket.tokens}": round(1e6 * seconds, 3)
                for bucket, seconds in self.steps.context_seconds.items()
            },
            **self.drafts.milliseconds(),
        }

    def verify_seconds(self, rows: int, tokens: int) -> float:
        """Return the seconds of a step over `rows` sequences and `tokens` tokens together."""
        steps = self.steps
        whole, rest = divmod(tokens, steps.largest)
        seconds = steps.of(rows, rest) if rest else 0.0
        return seconds + (whole * steps.of(rows, steps.largest) if whole else 0.0)

    def prompt_room(self, rows: int, tokens: int, slowdown: float, context: int) -> int:
        """Return how many prompt tokens to compute beside decoding sequences.

        As many as fill the largest step that takes at most `slowdown` times as long as decoding
        alone; if there is none, the next larger one, because prompts have to go on too.
        """
        rooms = sorted(size - tokens for size in self.steps.sizes(rows + 1) if size > tokens)
        allowed = slowdown * self.steps.of(rows, tokens)
        fitting = (
            room
            for room in rooms
            if self.steps.of(rows + 1, tokens + room, context + room) <= allowed
        )
        return max(fitting, default=rooms[0])

    def worth(
        self, rows: int, tokens: int, gain: float, draft_seconds: float, prompts: WaitingPrompts
    ) -> float:
        """Return what a step gains, in tokens per second, its prompt tokens included.

        Each of these counts for as much of a gained token as it takes of the time, in a service
        that is full: who waits for a first token is a row less in every step. For the same reason
        prompts have as much room as beside plain decoding, and a step in which drafts take it from
        them is worth nothing.
        """
        steps = self.steps
        if not prompts.tokens or all(size <= rows for size in steps.sizes(rows + 1)):
            return gain / (self.verify_seconds(rows, tokens) + draft_seconds)
        room = self.prompt_room(rows, rows, prompts.slowdown, prompts.context)
        room = min(prompts.tokens, room)
        if tokens > rows and all(size < tokens + room for size in steps.sizes(rows + 1)):
            return 0.0
        seconds = steps.of(rows + 1, tokens + room, prompts.context + room) + draft_seconds
        return (gain + room * self._prompt_token_worth) / seconds

    @property
    def _prompt_token_worth(self) -> float:
        """How much of a gained token's time a prompt token takes, each where it is cheapest."""
        fullest = self.steps.most_rows
        gained_token_seconds = self.steps.of(fullest, fullest) / fullest
        prompt_token_seconds = min(
            took / bucket.tokens for bucket, took in self.steps.by_bucket.items()
        )
        return prompt_token_seconds / gained_token_seconds

    def best_draft_length(
        self,
        estimates: Sequence[AcceptanceEstimate],
        limit: int,
        *,
        least: int = 0,
        prompts: WaitingPrompts = NO_PROMPTS,
    ) -> int:
        """Return the draft length, at most `limit`, with which a step is worth most."""
        steps = self._expected_steps(estimates, limit)
        rows = len(estimates)
        return max(
            range(least, limit + 1), key=lambda length: self._worth_of(rows, steps, length, prompts)
        )

    def _expected_steps(self, estimates: Sequence[AcceptanceEstimate], limit: int) -> ExpectedSteps:
        return expected_steps(estimates, limit, self.verify_seconds, self.drafts.seconds)

    def _worth_of(
        self, rows: int, steps: ExpectedSteps, length: int, prompts: WaitingPrompts
    ) -> float:
        """Return what a step is worth in which so many tokens are asked for of each sequence."""
        gain = float(steps.gains[length])
        if not prompts.tokens:
            return gain / float(steps.seconds[length])
        tokens = math.ceil(steps.tokens[length] - ROUNDING)
        return self.worth(rows, tokens, gain, float(steps.draft_seconds[length]), prompts)

    def wait_seconds(
        self, estimates: Sequence[AcceptanceEstimate], length: int, *, must_pay: bool
    ) -> float:
        """Return how long to wait for proposals, before decoding plainly is the better choice."""
        rows = len(estimates)
        plain = self.verify_seconds(rows, rows)
        seconds = WAIT_FACTOR * self.drafts.seconds(rows, length)
        if must_pay:
            steps = self._expected_steps(estimates, length)
            gained = float(steps.gains[-1]) / rows
            seconds = min(seconds, gained * plain - float(steps.verify_seconds[-1]))
        return max(seconds, WAIT_SHARE * plain)

    def try_length(
        self,
        estimates: Sequence[AcceptanceEstimate],
        overall: AcceptanceEstimate,
        limit: int,
        prompts: WaitingPrompts = NO_PROMPTS,
    ) -> int:
        """Return how far to draft to learn more where that does not seem to pay; 0 for nothing."""
        unknown = sum(estimate.proposals < FIRST_PROPOSALS for estimate in estimates)
        perfect = [AcceptanceEstimate([1.0] * limit)] * len(estimates)
        if overall.hopeless or 2 * unknown <= len(estimates):
            return 0
        if not self.best_draft_length(perfect, limit, prompts=prompts):
            return 0
        return self.best_draft_length(estimates, limit, least=1, prompts=prompts)

    def lost_seconds(
        self,
        estimates: Sequence[AcceptanceEstimate],
        length: int,
        best: int,
        prompts: WaitingPrompts = NO_PROMPTS,
    ) -> float:
        """Return what a step with another than the best draft length is expected to waste."""
        rows, steps = len(estimates), self._expected_steps(estimates, max(length, best))
        worth, most = (self._worth_of(rows, steps, each, prompts) for each in (length, best))
        return float(steps.seconds[length]) * (1.0 - worth / most)
