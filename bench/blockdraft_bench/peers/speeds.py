"""The arithmetic of the comparison: speeds over the same prompts, and their ratios to ours.

A decoder's speed is a ratio of sums over answers: tokens after the first over the time after the
first. Its ratio to another's is that of their speeds, and the 95 % interval a percentile bootstrap
that draws prompts, each with the answers of both.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blockdraft_bench.acceptance.statistics import Estimate
from blockdraft_bench.common.bootstrap import percentile_interval, resampled_totals
from blockdraft_bench.peers.answers import TimedAnswer, Variant


@dataclass(frozen=True, slots=True)
class PeerResult:
    """How one decoder compares.

    Attributes:
        variant: The decoder.
        samples: Answers.
        tokens: Tokens of all answers.
        tokens_per_second: Tokens after the first, over the time after the first; None if no
            answer has more than one.
        ttft_seconds: Time to the first token, median.
        ratio_to_plain: Its speed over that of our plain decoding.
        ratio_to_drafted: Its speed over that of our drafted decoding.
        identical_share: Share of answers whose tokens are those of our plain decoding.
        first_divergences: Index of the answer and of its first token that differs, for the rest.
    """

    variant: Variant
    samples: int
    tokens: int
    tokens_per_second: float | None
    ttft_seconds: float
    ratio_to_plain: Estimate
    ratio_to_drafted: Estimate
    identical_share: float
    first_divergences: tuple[tuple[int, int], ...]


def compare(
    answers: Mapping[Variant, Sequence[TimedAnswer]], *, plain: Variant, drafted: Variant, seed: int
) -> list[PeerResult]:
    """Sum up all decoders.

    Args:
        answers: The answers of each to the same prompts, at least one, in the same order.
        plain: Our plain decoding.
        drafted: Our drafted decoding.
        seed: Of the bootstrap.
    """
    reference = answers[plain]
    results = []
    for variant, own in answers.items():
        diverged = [
            (index, place)
            for index, (answer, expected) in enumerate(zip(own, reference, strict=True))
            if (place := first_divergence(answer.token_ids, expected.token_ids)) is not None
        ]
        results.append(
            PeerResult(
                variant=variant,
                samples=len(own),
                tokens=sum(len(answer.token_ids) for answer in own),
                tokens_per_second=_speed(own),
                ttft_seconds=statistics.median(answer.ttft_seconds for answer in own),
                ratio_to_plain=speed_ratio(own, reference, seed),
                ratio_to_drafted=speed_ratio(own, answers[drafted], seed),
                identical_share=1 - len(diverged) / len(own),
                first_divergences=tuple(diverged),
            )
        )
    return results


def first_divergence(tokens: Sequence[int], expected: Sequence[int]) -> int | None:
    """Return the first index at which they differ, or where the shorter ends; None if equal."""
    pairs = itertools.zip_longest(tokens, expected)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), None)


def speed_ratio(own: Sequence[TimedAnswer], other: Sequence[TimedAnswer], seed: int) -> Estimate:
    """Return the speed of `own` over that of `other`, answers to the same prompts."""
    columns = np.array(
        [
            (one.timed_tokens, one.decode_seconds, two.timed_tokens, two.decode_seconds)
            for one, two in zip(own, other, strict=True)
        ],
        np.float64,
    )

    def ratio(totals: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):  # answers of a single token
            speeds = totals[:, 0::2] / totals[:, 1::2]
            return np.asarray(speeds[:, 0] / speeds[:, 1])

    value = float(ratio(columns.sum(axis=0, keepdims=True))[0])
    return Estimate(
        value if np.isfinite(value) else None,
        percentile_interval(ratio(resampled_totals(columns, seed))) if len(columns) > 1 else None,
    )


def _speed(answers: Sequence[TimedAnswer]) -> float | None:
    seconds = sum(answer.decode_seconds for answer in answers)
    return sum(answer.timed_tokens for answer in answers) / seconds if seconds else None
