"""The worth of a step: the tokens per second that are expected of it.

While prompts wait for room in the steps, their tokens count too: a drafted token takes the place of
a prompt token, which makes the time to first token of another request longer. `costs` has the
seconds, `acceptance` how often drafted tokens are right. No I/O, no clock.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.engine.acceptance import (
    AcceptanceEstimate,
    ExpectedDrafts,
    expected_drafts,
)
from blockdraft_verifier.engine.costs import DraftCosts, StepTimes

# Error of rounding in sums of probabilities.
ROUNDING = 1e-9
# A sequence gets so many drafts before the others' acceptance can decide against drafting, unless
# theirs was hopeless: text differs, and only drafts can show it.
FIRST_DRAFTS = 4
# A step waits for a draft so many times as long as drafting usually takes.
WAIT_FACTOR = 2.0
# It waits at least for such a share of a plain step, which is too short to notice.
WAIT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class WaitingPrompts:
    """Prompt tokens to compute beside the sequences that are decoding."""

    tokens: int = 0
    slowdown: float = 1.0  # how many times as long they may make a step; at least 1
    context: int = 0  # most tokens that were computed of one of them before


NO_PROMPTS = WaitingPrompts()


class ExpectedSteps(NamedTuple):
    """Steps in which the drafter is asked for 0, 1, 2, ... tokens for each sequence."""

    gains: Float[np.ndarray, " lengths"]  # tokens, of all sequences together
    verify_seconds: Float[np.ndarray, " lengths"]
    draft_seconds: Float[np.ndarray, " lengths"]
    worth: list[float]

    def best(self, least: int = 0) -> int:
        """Return the draft length with which a step is worth most."""
        return max(range(least, len(self.worth)), key=self.worth.__getitem__)

    def lost_seconds(self, length: int, best: int) -> float:
        """Return the seconds that a step of `length` is expected to waste beside the `best`."""
        seconds = float(self.verify_seconds[length] + self.draft_seconds[length])
        return seconds * (1.0 - self.worth[length] / self.worth[best])


class CostModel:
    """Seconds of verification (`steps`) and of drafting (`drafts`), and what they buy."""

    def __init__(
        self,
        verify_seconds: Mapping[Bucket, float],
        context_seconds: Mapping[Bucket, float] = MappingProxyType({}),
    ) -> None:
        """Use what was measured of each compiled bucket; see `StepTimes`."""
        self.steps = StepTimes(verify_seconds, context_seconds)
        self.drafts = DraftCosts()

    def milliseconds(self) -> dict[str, object]:
        """Return the present estimates of the time that steps take, for the debug state."""
        return {
            "verify_by_rows_x_tokens": {
                str(bucket): round(1e3 * seconds, 3)
                for bucket, seconds in self.steps.by_bucket.items()
            },
            "verify_per_1000_context_tokens": {
                str(bucket): round(1e6 * seconds, 3)
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
        """Return the worth of a step, in tokens gained per second, prompt tokens included.

        In a full service a prompt token takes some share of the time of a gained token, and it
        counts as that share: as long as a prompt is not computed, every step has a row less. For
        the same reason prompts have as much room as beside plain decoding, and a step in which
        drafts take it from them is worth nothing.
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
        """Time of a prompt token, as a share of a gained token's; each where it is cheapest."""
        fullest = self.steps.most_rows
        gained_token_seconds = self.steps.of(fullest, fullest) / fullest
        return self.steps.of_cheapest_token / gained_token_seconds

    def expected_steps(
        self,
        estimates: Sequence[AcceptanceEstimate],
        max_length: int,
        prompts: WaitingPrompts = NO_PROMPTS,
    ) -> ExpectedSteps:
        """Return the expectations of steps with drafts of 0, 1, ... `max_length` tokens."""
        rows, expected = len(estimates), expected_drafts(estimates, max_length)
        gains = rows + expected.accepted
        # The drafts of several sequences have together about as many tokens as expected.
        sizes = [rows + math.ceil(drafted - ROUNDING) for drafted in expected.drafted.tolist()]
        if rows == 1:
            verified = self._verified_alone(expected)
        else:
            verified = np.array([self.verify_seconds(rows, size) for size in sizes])
        drafted = np.array(
            [self.drafts.seconds(rows, passes) for passes in expected.passes.tolist()]
        )
        if prompts.tokens:
            each_length = zip(sizes, gains.tolist(), drafted.tolist(), strict=True)
            worth = [self.worth(rows, *length, prompts) for length in each_length]
        else:
            worth = (gains / (verified + drafted)).tolist()
        return ExpectedSteps(gains, verified, drafted, worth)

    def _verified_alone(self, drafts: ExpectedDrafts) -> Float[np.ndarray, " lengths"]:
        """Return the seconds of verifying a lone sequence's drafts of 0, 1, ... tokens.

        A draft that ends early is verified in a smaller step: a token costs the seconds that it
        makes the step longer, times the chance that it is drafted.
        """
        lengths = range(len(drafts.drafted))
        took = np.array([self.verify_seconds(1, 1 + length) for length in lengths])
        longer = np.diff(drafts.drafted) * np.diff(took)
        return np.concatenate([took[:1], took[0] + np.cumsum(longer)])

    def probe_length(
        self,
        estimates: Sequence[AcceptanceEstimate],
        overall: AcceptanceEstimate,
        max_length: int,
        prompts: WaitingPrompts = NO_PROMPTS,
    ) -> int:
        """Return the draft length of a probe, made although it does not seem to pay; 0 for none."""
        unknown = sum(estimate.count < FIRST_DRAFTS for estimate in estimates)
        if overall.hopeless or 2 * unknown <= len(estimates):
            return 0
        perfect = [AcceptanceEstimate([1.0] * max_length)] * len(estimates)
        if not self.expected_steps(perfect, max_length, prompts).best():
            return 0
        return self.expected_steps(estimates, max_length, prompts).best(least=1)

    def wait_seconds(
        self, estimates: Sequence[AcceptanceEstimate], length: int, *, must_pay: bool
    ) -> float:
        """Return the seconds to wait for drafts before plain decoding is the better choice."""
        rows = len(estimates)
        plain = self.verify_seconds(rows, rows)
        seconds = WAIT_FACTOR * self.drafts.seconds(rows, length)
        if must_pay:
            steps = self.expected_steps(estimates, length)
            gained = float(steps.gains[-1]) / rows
            seconds = min(seconds, gained * plain - float(steps.verify_seconds[-1]))
        return max(seconds, WAIT_SHARE * plain)
