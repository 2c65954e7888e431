"""How long steps of the target take, by their shape and by the context that a prompt reads.

Measured at warm-up, and again while serving, since machines warm up and contexts grow. No I/O, no
clock.
"""

from collections.abc import Mapping

from blockdraft_verifier.device.buckets import Bucket, bucket_for

# The last ~5 steps of a shape decide.
TIME_LEARNING_RATE = 0.2


class StepTimes:
    """Seconds of a step in each bucket.

    Attributes:
        largest: Tokens of the largest step.
        most_rows: Sequences of the largest step.
    """

    def __init__(
        self, seconds: Mapping[Bucket, float], context_seconds: Mapping[Bucket, float]
    ) -> None:
        """Start from what was measured.

        Args:
            seconds: Of a step in each bucket where contexts are short.
            context_seconds: What each token of context adds that all tokens of the step read.
        """
        self._seconds = dict(seconds)
        self._context_seconds = {bucket: context_seconds.get(bucket, 0.0) for bucket in seconds}
        self._buckets = tuple(sorted(seconds))
        self.largest = max(bucket.tokens for bucket in seconds)
        self.most_rows = max(bucket.rows for bucket in seconds)

    @property
    def by_bucket(self) -> Mapping[Bucket, float]:
        """Seconds of a step without a long prompt, in each bucket."""
        return self._seconds

    @property
    def context_seconds(self) -> Mapping[Bucket, float]:
        """What each token of a prompt's context adds to them."""
        return self._context_seconds

    def observe(self, rows: int, tokens: int, seconds: float, context: int = 0) -> None:
        """Learn what a step took.

        Args:
            rows: Its sequences.
            tokens: Their tokens in the step.
            seconds: What it took.
            context: Tokens of its longest prompt until the end of this step's part.
        """
        bucket = bucket_for(self._buckets, rows, tokens)
        known, of_context = self._seconds[bucket], self._context_seconds[bucket]
        expected = known + context * of_context
        # Each part is as wrong as it is large, as far as this step tells.
        learned = TIME_LEARNING_RATE * (seconds - expected)
        share = known / expected if expected else 1.0
        self._seconds[bucket] = known + share * learned
        if context:
            self._context_seconds[bucket] = of_context + (1.0 - share) * learned / context

    def of(self, rows: int, tokens: int, context: int = 0) -> float:
        """Return the seconds of a step: no more than any larger one was seen to take.

        A shape that was slow once, because the machine was, would else be avoided for good, and so
        never be measured again.

        Args:
            rows: Its sequences.
            tokens: Their tokens in the step, at most `largest`.
            context: Tokens of its longest prompt until the end of this step's part.
        """
        return min(
            seconds + context * self._context_seconds[bucket]
            for bucket, seconds in self._seconds.items()
            if bucket.rows >= rows and bucket.tokens >= tokens
        )

    def sizes(self, rows: int) -> set[int]:
        """Return the tokens of every compiled step that holds `rows` sequences."""
        return {bucket.tokens for bucket in self._buckets if bucket.rows >= rows}
