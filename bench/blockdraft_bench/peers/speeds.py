"""The arithmetic of the comparison: speeds over the same prompts, and their ratios to ours.

A decoder's speed is a ratio of sums over answers: tokens after the first over the time after the
first. Its ratio to another's is that of their speeds, and the interval draws prompts, each with the
answers of both.
"""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from blockdraft_bench.common.answers import first_difference
from blockdraft_bench.common.statistics import Estimate, bootstrap
from blockdraft_bench.peers.answers import TimedAnswer, Variant
from blockdraft_bench.peers.report import FirstDivergence, PeerRow


def compare(
    answers: Mapping[Variant, Sequence[TimedAnswer]],
    names: Sequence[tuple[str, str]],
    *,
    plain: Variant,
    drafted: Variant,
    seed: int,
) -> tuple[PeerRow, ...]:
    """Sum up all decoders.

    Args:
        answers: The answers of each to the same prompts, at least one, in the same order.
        names: Dataset and sample of each prompt.
        plain: Our plain decoding.
        drafted: Our drafted decoding.
        seed: Of the bootstrap.
    """
    reference = answers[plain]
    rows = []
    for variant, own in answers.items():
        diverged = tuple(
            FirstDivergence(*name, place)
            for name, answer, expected in zip(names, own, reference, strict=True)
            if (place := first_difference(answer.token_ids, expected.token_ids)) is not None
        )
        rows.append(
            PeerRow(
                peer=variant.peer,
                variant=variant.name,
                dtype=variant.dtype,
                samples=len(own),
                tokens=sum(len(answer.token_ids) for answer in own),
                tokens_per_second=_speed(own),
                ttft_seconds=statistics.median(answer.ttft_seconds for answer in own),
                ratio_to_plain=speed_ratio(own, reference, seed),
                ratio_to_drafted=speed_ratio(own, answers[drafted], seed),
                identical_share=1 - len(diverged) / len(own),
                first_divergences=diverged,
            )
        )
    return tuple(rows)


def speed_ratio(own: Sequence[TimedAnswer], other: Sequence[TimedAnswer], seed: int) -> Estimate:
    """Return the speed of `own` over that of `other`, answers to the same prompts."""
    columns = np.array(
        [
            (one.timed_tokens, one.decode_seconds, two.timed_tokens, two.decode_seconds)
            for one, two in zip(own, other, strict=True)
        ],
        np.float64,
    )
    [ratio] = bootstrap(columns, _ratio, seed)
    return ratio


def _ratio(totals: Float[np.ndarray, "rows 4"]) -> Float[np.ndarray, "rows 1"]:
    speeds = totals[:, 0::2] / totals[:, 1::2]
    return np.asarray(speeds[:, :1] / speeds[:, 1:])


def _speed(answers: Sequence[TimedAnswer]) -> float | None:
    seconds = sum(answer.decode_seconds for answer in answers)
    return sum(answer.timed_tokens for answer in answers) / seconds if seconds else None
