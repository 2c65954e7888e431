"""Estimates of the seconds of steps and drafts, from their first measurement on; no clock.

A step takes what its shape takes, times how slow the machine is just now: neighbours, clocks and
longer contexts slow all shapes alike. What to draft depends on how shapes compare. So where a step
took longer than expected, the machine counts as slower first, and the shape as slower only as far
as its own time is less well known. It is a Kalman filter over logarithms of seconds, with the
covariances left out (docs/adr/0040).
"""

import math
from collections.abc import Mapping, Sequence

from blockdraft_verifier.device.buckets import Bucket, bucket_for
from blockdraft_verifier.engine.acceptance import LEARNING_RATE

# Variances of natural logarithms, so that 0.01 is a tenth of the time.
# Measurements before the first request have little or no context.
_SHAPE_VARIANCE = 0.1
# Added to it with each step, so that ~20 steps of a shape teach its time anew.
_SHAPE_DRIFT = 1e-4
_SLOWNESS_VARIANCE = 0.05
_SLOWNESS_DRIFT = 0.02
# The share of the slowness that is left in the next step: in the end all of it goes to the shapes.
_SLOWNESS_LASTS = 0.98
_STEP_NOISE = 0.01
# A step further off than so many standard deviations was held up; it counts as if it were as many.
_MOST_DEVIATIONS = 1.5
# A step that is made up may take no time.
_LEAST_SECONDS = 1e-6


class StepTimes:
    """Seconds of a step in each bucket.

    Attributes:
        largest: Tokens of the largest step.
        most_rows: Sequences of the largest step.
    """

    def __init__(
        self, seconds: Mapping[Bucket, float], context_seconds: Mapping[Bucket, float]
    ) -> None:
        """Start from what was measured."""
        self._usual = {bucket: max(usual, _LEAST_SECONDS) for bucket, usual in seconds.items()}
        self._usual_of_context = {bucket: context_seconds.get(bucket, 0.0) for bucket in seconds}
        self._variance = dict.fromkeys(seconds, _SHAPE_VARIANCE)
        self._slowness, self._slowness_variance = 0.0, _SLOWNESS_VARIANCE
        self._buckets = tuple(sorted(seconds))
        # What `of` returns until the next step is observed: a decision asks for the same again.
        self._seconds: dict[tuple[int, int, int], float] = {}
        self.largest = max(bucket.tokens for bucket in seconds)
        self.most_rows = max(bucket.rows for bucket in seconds)

    @property
    def by_bucket(self) -> Mapping[Bucket, float]:
        """Seconds that a step without a long prompt takes now, in each bucket."""
        slowness = self._slowness_now
        return {bucket: slowness * usual for bucket, usual in self._usual.items()}

    @property
    def context_seconds(self) -> Mapping[Bucket, float]:
        """Seconds that each token of a prompt's context adds, in each bucket."""
        slowness = self._slowness_now
        return {bucket: slowness * usual for bucket, usual in self._usual_of_context.items()}

    def observe(self, rows: int, tokens: int, seconds: float, context: int = 0) -> None:
        """Learn what a step took."""
        self._seconds.clear()
        for shape, variance in self._variance.items():
            self._variance[shape] = min(variance + _SHAPE_DRIFT, _SHAPE_VARIANCE)
        self._slowness *= _SLOWNESS_LASTS
        self._slowness_variance *= _SLOWNESS_LASTS**2
        self._slowness_variance += _SLOWNESS_DRIFT

        bucket = bucket_for(self._buckets, rows, tokens)
        expected = self._usual[bucket] + context * self._usual_of_context[bucket]
        error = math.log(max(seconds, _LEAST_SECONDS) / expected) - self._slowness
        variance = self._variance[bucket] + self._slowness_variance + _STEP_NOISE
        max_error = _MOST_DEVIATIONS * math.sqrt(variance)
        error = max(-max_error, min(max_error, error))
        of_machine, of_shape = self._slowness_variance / variance, self._variance[bucket] / variance
        self._slowness += of_machine * error
        self._slowness_variance *= 1.0 - of_machine
        self._variance[bucket] *= 1.0 - of_shape
        self._usual[bucket] *= math.exp(of_shape * error)
        if context:
            self._usual_of_context[bucket] *= math.exp(of_shape * error)

    def of(self, rows: int, tokens: int, context: int = 0) -> float:
        """Return the seconds of a step now.

        It takes no more than any larger step that is known as well: a shape that has not run for
        long may have been slow when it last did.
        """
        key = rows, tokens, context
        if key not in self._seconds:
            variance = self._variance[bucket_for(self._buckets, rows, tokens)]
            self._seconds[key] = self._slowness_now * min(
                usual + context * self._usual_of_context[bucket]
                for bucket, usual in self._usual.items()
                if bucket.rows >= rows
                and bucket.tokens >= tokens
                and self._variance[bucket] <= variance
            )
        return self._seconds[key]

    @property
    def of_cheapest_token(self) -> float:
        """Seconds of a token in the shape where it takes least."""
        usual = min(seconds / bucket.tokens for bucket, seconds in self._usual.items())
        return self._slowness_now * usual

    def sizes(self, rows: int) -> set[int]:
        """Return the tokens of every compiled step that holds `rows` sequences."""
        return {bucket.tokens for bucket in self._buckets if bucket.rows >= rows}

    @property
    def _slowness_now(self) -> float:
        return math.exp(self._slowness)


# The last ~5 drafts decide.
TIME_LEARNING_RATE = 0.2


class DraftCosts:
    """Seconds of a draft step by sequences and tokens, and of the trip to the drafter.

    Between one token and a whole block the seconds rise evenly: a drafter that drafts token by
    token makes a pass for each; a drafter that drafts blocks takes as long for either.
    """

    def __init__(
        self,
        block_size: int = 1,
        step_seconds: Sequence[float] = (),
        shortest_step_seconds: Sequence[float] = (),
    ) -> None:
        """Use the drafter's own measurements, for batches of 1, 2, 4, ... sequences."""
        self._longest = block_size - 1
        self._whole = list(step_seconds)
        self._by_token = [0.0] * len(self._whole)
        if block_size > 2:
            for index, shortest in enumerate(shortest_step_seconds[: len(self._whole)]):
                more = max(0.0, self._whole[index] - shortest)
                self._by_token[index] = more / (self._longest - 1)
        self._transport = 0.0

    def milliseconds(self) -> dict[str, object]:
        """Return the present estimates, for the debug state."""
        return {
            "draft_by_doubling_rows": [round(1e3 * seconds, 3) for seconds in self._whole],
            "draft_token_by_doubling_rows": [round(1e3 * seconds, 3) for seconds in self._by_token],
            "transport": round(1e3 * self._transport, 3),
        }

    def observe_transport(self, seconds: float) -> None:
        """Learn what waiting for the drafter costs beyond its own computation."""
        self._transport += LEARNING_RATE * (seconds - self._transport)

    def observe(self, rows: int, length: int, seconds: float) -> None:
        """Learn what computing `length` tokens for each of `rows` sequences together took."""
        if self._whole:
            error = seconds - self._computed(rows, length)
            self._whole[self._index(rows)] += TIME_LEARNING_RATE * error

    def seconds(self, rows: int, length: int | float) -> float:
        """Return the seconds of drafts for `rows` sequences, transport included."""
        if not length or not self._whole:
            return 0.0
        return self._computed(rows, length) + self._transport

    def _computed(self, rows: int, length: int | float) -> float:
        index = self._index(rows)
        left_out = max(0.0, self._longest - length)
        return max(0.0, self._whole[index] - left_out * self._by_token[index])

    def _index(self, rows: int) -> int:
        return min((rows - 1).bit_length(), len(self._whole) - 1)
