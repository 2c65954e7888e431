"""How many tokens to draft: the number that maximizes expected tokens per second.

While prompts wait for room in the steps, their tokens count too: a drafted token takes the place of
a prompt token, so that somebody else's first token comes later.

Measured at warm-up: the seconds of a verification step in each bucket (the K-flat curve) and of a
draft step for each batch size. Measured while serving: both again, since the processes of a host
warm up while the others compile, and contexts grow; how often the drafted token at each position
is right given that those before it were; and what the trip to the drafter costs. No I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from blockdraft_verifier.device.buckets import Bucket, bucket_for

# With this weight the last ~20 proposals decide an estimate.
LEARNING_RATE = 0.05
# Times vary less than acceptance: the last ~5 steps of a shape decide.
TIME_LEARNING_RATE = 0.2
# What an estimate starts from counts as much as so many proposals, so the first ones teach most.
PRIOR_WEIGHT = 4
# Drafting that does not pay is tried again this often, in steps: text changes.
EXPLORE_EVERY_STEPS = 64
# Tries may cost such a share of the time, so they are rarer where they are dear,
TRY_SHARE = 0.02
# of that of so many steps at most, however long there was none.
TRY_STEPS = 1024
# A sequence gets so many proposals before the others' acceptance can decide against drafting: text
# differs, and one that is never drafted for can never show it,
FIRST_PROPOSALS = 4
# unless the drafter is hardly ever right about anything.
HOPELESS_ACCEPTANCE = 0.1
# A proposal is waited for so many times as long as it usually takes,
WAIT_FACTOR = 2.0
# and in any case for such a share of a plain step, which nobody notices.
WAIT_SHARE = 0.5
# From so many trials on, a mean would move less than that.
SETTLED_TRIALS = 1 / LEARNING_RATE - PRIOR_WEIGHT
# Before anything is measured, assume a usable drafter, so that it gets measured.
PRIOR_ACCEPTANCE = 0.8


@dataclass(slots=True)
class AcceptanceEstimate:
    """Running estimate of acceptance by draft position, given that all before were accepted.

    A mean of the prior and what was seen, until the last proposals alone decide.

    Attributes:
        by_position: The estimate at each position.
        trials: How often each was put to the test.
    """

    by_position: list[float] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)

    @property
    def proposals(self) -> int:
        """Number of proposals learned from."""
        return self.trials[0] if self.trials else 0

    @property
    def hopeless(self) -> bool:
        """Whether not even the first drafted token is worth a try."""
        return bool(self.by_position) and self.by_position[0] < HOPELESS_ACCEPTANCE

    def successor(self) -> "AcceptanceEstimate":
        """Return an estimate that takes this one as its prior."""
        return AcceptanceEstimate(list(self.by_position))

    def update(self, drafted: int, accepted: int) -> None:
        """Learn from one verification of `drafted` tokens of which `accepted` were right."""
        while len(self.by_position) < drafted:
            self.by_position.append(PRIOR_ACCEPTANCE)
        self.trials += [0] * (len(self.by_position) - len(self.trials))
        by_position, trials = self.by_position, self.trials
        # Positions after the first miss were never put to the test.
        for position in range(min(accepted + 1, drafted)):
            tried = trials[position] = trials[position] + 1
            rate = 1 / (PRIOR_WEIGHT + tried) if tried < SETTLED_TRIALS else LEARNING_RATE
            by_position[position] += rate * ((position < accepted) - by_position[position])


def accepted_of(estimate: AcceptanceEstimate, length: int) -> float:
    """Return how many of `length` drafted tokens are expected to be accepted of one sequence."""
    alive, total = 1.0, 0.0
    by_position = estimate.by_position
    for position in range(length):
        known = position < len(by_position)
        alive *= by_position[position] if known else PRIOR_ACCEPTANCE
        total += alive
    return total


def expected_accepted(
    estimates: Sequence[AcceptanceEstimate], most: int
) -> Float[np.ndarray, " lengths"]:
    """Return how many tokens are accepted of proposals of 0, 1, ... `most` tokens.

    Args:
        estimates: Of each sequence that gets a proposal.
        most: Tokens of the longest.

    Returns:
        The expected sum over all sequences.
    """
    known = [estimate.by_position[:most] for estimate in estimates]
    padded = np.array([each + [PRIOR_ACCEPTANCE] * (most - len(each)) for each in known])
    alive = np.cumprod(padded.reshape(len(known), most), axis=1).sum(axis=0)
    return np.concatenate([[0.0], np.cumsum(alive)])


@dataclass(frozen=True, slots=True)
class WaitingPrompts:
    """What is to be computed of prompts, beside the sequences that are decoding.

    Attributes:
        tokens: How many are left.
        slowdown: How many times as long they may make a step; at least 1.
    """

    tokens: int = 0
    slowdown: float = 1.0


NO_PROMPTS = WaitingPrompts()


class CostModel:
    """Seconds of verification and drafting, from measurements."""

    def __init__(self, verify_seconds: Mapping[Bucket, float]) -> None:
        """Use the measured seconds of each compiled bucket."""
        self._verify_seconds = dict(verify_seconds)
        self._buckets = tuple(sorted(verify_seconds))
        self._draft_seconds: list[float] = []
        self._transport_seconds = 0.0

    def milliseconds(self) -> dict[str, object]:
        """Return what is known now of the time that steps take, for the person who asks."""
        return {
            "verify_by_rows_x_tokens": {
                f"{bucket.rows}x{bucket.tokens}": round(1e3 * seconds, 3)
                for bucket, seconds in self._verify_seconds.items()
            },
            "draft_by_doubling_rows": [round(1e3 * seconds, 3) for seconds in self._draft_seconds],
            "transport": round(1e3 * self._transport_seconds, 3),
        }

    def attach_drafter(self, step_seconds: Sequence[float]) -> None:
        """Use the drafter's own measurements, for batches of 1, 2, 4, ... sequences."""
        self._draft_seconds = list(step_seconds)
        self._transport_seconds = 0.0

    def observe_transport(self, seconds: float) -> None:
        """Learn what waiting for the drafter costs beyond its own computation."""
        self._transport_seconds += LEARNING_RATE * (seconds - self._transport_seconds)

    def observe_verification(self, rows: int, tokens: int, seconds: float) -> None:
        """Learn what a step over `rows` sequences and `tokens` tokens took."""
        bucket = bucket_for(self._buckets, rows, tokens)
        known = self._verify_seconds[bucket]
        self._verify_seconds[bucket] = known + TIME_LEARNING_RATE * (seconds - known)

    def observe_draft(self, rows: int, seconds: float) -> None:
        """Learn what computing proposals for `rows` sequences together took."""
        if self._draft_seconds:
            index = self._draft_index(rows)
            known = self._draft_seconds[index]
            self._draft_seconds[index] = known + TIME_LEARNING_RATE * (seconds - known)

    def verify_seconds(self, rows: int, tokens: int) -> float:
        """Return the seconds of a step over `rows` sequences and `tokens` tokens together."""
        largest = max(bucket.tokens for bucket in self._buckets)
        whole, rest = divmod(tokens, largest)
        seconds = self._step_seconds(rows, rest) if rest else 0.0
        return seconds + (whole * self._step_seconds(rows, largest) if whole else 0.0)

    def _step_seconds(self, rows: int, tokens: int) -> float:
        """Return the seconds of one step: no more than any larger one was seen to take.

        A shape that was slow once, because the machine was, would else be avoided for good, and so
        never be measured again.
        """
        return min(
            seconds
            for bucket, seconds in self._verify_seconds.items()
            if bucket.rows >= rows and bucket.tokens >= tokens
        )

    def step_sizes(self, rows: int) -> set[int]:
        """Return the tokens of every compiled step that holds `rows` sequences."""
        return {bucket.tokens for bucket in self._buckets if bucket.rows >= rows}

    def prompt_room(self, rows: int, tokens: int, slowdown: float) -> int:
        """Return how many prompt tokens to compute beside decoding sequences.

        As many as fill the largest step that takes at most `slowdown` times as long as decoding
        alone; if there is none, the next larger one, because prompts have to go on too.

        Args:
            rows: Decoding sequences.
            tokens: Their tokens in the step, fewer than the largest step holds.
            slowdown: At least 1.
        """
        larger = sorted(size for size in self.step_sizes(rows + 1) if size > tokens)
        allowed = slowdown * self.verify_seconds(rows, tokens)
        fitting = [size for size in larger if self._step_seconds(rows + 1, size) <= allowed]
        return max(fitting, default=larger[0]) - tokens

    def draft_seconds(self, rows: int) -> float:
        """Return the seconds of one proposal for `rows` sequences, transport included."""
        if not self._draft_seconds:
            return 0.0
        return self._draft_seconds[self._draft_index(rows)] + self._transport_seconds

    def _draft_index(self, rows: int) -> int:
        return min((rows - 1).bit_length(), len(self._draft_seconds) - 1)

    def worth(
        self, rows: int, tokens: int, gain: float, draft_seconds: float, prompts: WaitingPrompts
    ) -> float:
        """Return what a step gains, in tokens per second, its prompt tokens included.

        Each of these counts for as much of a gained token as it takes of the time, in a service
        that is full: who waits for a first token is a row less in every step. For the same reason
        prompts have as much room as beside plain decoding, and a step in which drafts take it from
        them is worth nothing.

        Args:
            rows: Sequences that are decoding.
            tokens: What is verified of all of them.
            gain: Tokens they are expected to gain.
            draft_seconds: What drafting took before.
            prompts: What waits for room in the step.
        """
        if not prompts.tokens or all(size <= rows for size in self.step_sizes(rows + 1)):
            return gain / (self.verify_seconds(rows, tokens) + draft_seconds)
        room = min(prompts.tokens, self.prompt_room(rows, rows, prompts.slowdown))
        if tokens > rows and all(size < tokens + room for size in self.step_sizes(rows + 1)):
            return 0.0
        seconds = self.verify_seconds(rows + 1, tokens + room) + draft_seconds
        return (gain + room * self._prompt_token_worth) / seconds

    @property
    def _prompt_token_worth(self) -> float:
        """How much of a gained token's time a prompt token takes, each where it is cheapest."""
        fullest = max(bucket.rows for bucket in self._buckets)
        gained_token_seconds = self.verify_seconds(fullest, fullest) / fullest
        prompt_token_seconds = min(
            took / bucket.tokens for bucket, took in self._verify_seconds.items()
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
        """Return the draft length, at most `limit`, with which a step is worth most.

        Args:
            estimates: The acceptance estimate of each sequence of the batch; at least one.
            limit: Most tokens the drafter can draft.
            least: Fewest, where drafting is to be tried.
            prompts: What waits for room in the step.
        """
        rows = len(estimates)
        accepted = expected_accepted(estimates, limit).tolist()
        return max(
            range(least, limit + 1),
            key=lambda length: self._worth_of(rows, length, accepted[length], prompts),
        )

    def _worth_of(self, rows: int, length: int, accepted: float, prompts: WaitingPrompts) -> float:
        """Return what a step is worth with drafts of one length, of which so much is accepted."""
        seconds = self.draft_seconds(rows) if length else 0.0
        return self.worth(rows, rows * (1 + length), rows + accepted, seconds, prompts)

    def wait_seconds(
        self, estimates: Sequence[AcceptanceEstimate], length: int, *, must_pay: bool
    ) -> float:
        """Return how long to wait for proposals, before decoding plainly is the better choice.

        Args:
            estimates: The acceptance estimate of each sequence of the batch; at least one.
            length: Tokens of each proposal.
            must_pay: Whether to give up once not even the expected gain makes up for the wait.
        """
        rows = len(estimates)
        plain = self.verify_seconds(rows, rows)
        seconds = WAIT_FACTOR * self.draft_seconds(rows)
        if must_pay:
            gained = 1.0 + float(expected_accepted(estimates, length)[-1]) / rows
            verified = self.verify_seconds(rows, rows * (1 + length))
            seconds = min(seconds, gained * plain - verified)
        return max(seconds, WAIT_SHARE * plain)

    def try_length(
        self,
        estimates: Sequence[AcceptanceEstimate],
        overall: AcceptanceEstimate,
        limit: int,
        prompts: WaitingPrompts = NO_PROMPTS,
    ) -> int:
        """Return how far to draft where it does not seem to pay but too little is known; 0 if not.

        Args:
            estimates: The acceptance estimate of each sequence of the batch; at least one.
            overall: That of all sequences so far.
            limit: Most tokens the drafter can draft.
            prompts: What waits for room in the step.
        """
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
        """Return what a step with another than the best draft length is expected to waste.

        Args:
            estimates: The acceptance estimate of each sequence of the batch; at least one.
            length: The other length.
            best: The best one.
            prompts: What waits for room in the step.
        """
        rows = len(estimates)
        seconds = self.verify_seconds(rows, rows * (1 + length)) + self.draft_seconds(rows)
        accepted = expected_accepted(estimates, max(length, best)).tolist()
        worth, most = (
            self._worth_of(rows, each, accepted[each], prompts) for each in (length, best)
        )
        return seconds * (1.0 - worth / most)
