"""How many tokens to draft: the number that maximizes expected tokens per second.

Measured at warm-up: the seconds of a verification step in each bucket (the K-flat curve) and of a
draft step for each batch size. Measured while serving: both again, since the processes of a host
warm up while the others compile, and contexts grow; how often the drafted token at each position
is right given that those before it were; and what the trip to the drafter costs. Pure Python.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blockdraft_verifier.buckets import Bucket, bucket_for

# With this weight the last ~20 proposals decide an estimate.
LEARNING_RATE = 0.05
# Times vary less than acceptance: the last ~5 steps of a shape decide.
TIME_LEARNING_RATE = 0.2
# Drafting that does not pay is tried again this often, in steps: text changes.
EXPLORE_EVERY_STEPS = 64
# Before anything is measured, assume a usable drafter, so that it gets measured.
PRIOR_ACCEPTANCE = 0.8


@dataclass(slots=True)
class AcceptanceEstimate:
    """Running estimate of acceptance by draft position, given that all before were accepted."""

    by_position: list[float] = field(default_factory=list)

    def update(self, drafted: int, accepted: int) -> None:
        """Learn from one verification of `drafted` tokens of which `accepted` were right."""
        while len(self.by_position) < drafted:
            self.by_position.append(PRIOR_ACCEPTANCE)
        # Positions after the first miss were never put to the test.
        for position in range(min(accepted + 1, drafted)):
            hit = float(position < accepted)
            self.by_position[position] += LEARNING_RATE * (hit - self.by_position[position])

    def expected_accepted(self, draft_length: int) -> float:
        """Return the expected number of accepted tokens among `draft_length` drafted ones."""
        total, alive = 0.0, 1.0
        for position in range(draft_length):
            known = position < len(self.by_position)
            alive *= self.by_position[position] if known else PRIOR_ACCEPTANCE
            total += alive
        return total


class CostModel:
    """Seconds of verification and drafting, from measurements."""

    def __init__(self, verify_seconds: Mapping[Bucket, float]) -> None:
        """Use the measured seconds of each compiled bucket."""
        self._verify_seconds = dict(verify_seconds)
        self._buckets = tuple(sorted(verify_seconds))
        self._draft_seconds: list[float] = []
        self._transport_seconds = 0.0

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
        seconds = self._verify_seconds[bucket_for(self._buckets, rows, rest)] if rest else 0.0
        if whole:
            seconds += whole * self._verify_seconds[bucket_for(self._buckets, rows, largest)]
        return seconds

    def draft_seconds(self, rows: int) -> float:
        """Return the seconds of one proposal for `rows` sequences, transport included."""
        if not self._draft_seconds:
            return 0.0
        return self._draft_seconds[self._draft_index(rows)] + self._transport_seconds

    def _draft_index(self, rows: int) -> int:
        return min((rows - 1).bit_length(), len(self._draft_seconds) - 1)

    def best_draft_length(self, estimates: Sequence[AcceptanceEstimate], limit: int) -> int:
        """Return the draft length, at most `limit`, that gains the most tokens per second.

        Args:
            estimates: The acceptance estimate of each sequence of the batch; at least one.
            limit: Most tokens the drafter can draft.
        """
        rows = len(estimates)

        def tokens_per_second(length: int) -> float:
            gained = sum(1.0 + estimate.expected_accepted(length) for estimate in estimates)
            seconds = self.verify_seconds(rows, rows * (1 + length))
            return gained / (seconds + (self.draft_seconds(rows) if length else 0.0))

        return max(range(limit + 1), key=tokens_per_second)
