"""The arithmetic of decoding speed: time per token, speed-up, acceptance, with intervals.

Seconds and tokens are those after an answer's first token, unless the name says otherwise. Speeds
are ratios of sums over the answers of a dataset, and the speed-up is a ratio of two of them over
the same samples.
"""

import statistics
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from blockdraft_bench.common.answers import PLAIN, DecodedAnswer
from blockdraft_bench.common.statistics import (
    bootstrap,
    geometric_mean,
    identical_share,
    mean,
    median,
    quartiles,
)
from blockdraft_bench.decode.report import Divergence, MethodAverage, MethodSpeed
from blockdraft_bench.decode.samples import DecodedSet


def summarize_method(
    decoded: DecodedSet,
    method: str,
    *,
    draft_length: int,
    seed: int,
    divergences: Sequence[Divergence] = (),
) -> MethodSpeed:
    """Sum up what one method did on one dataset.

    Args:
        decoded: The samples.
        method: Which method.
        draft_length: Tokens of its whole proposal, 0 for plain decoding.
        seed: Of the bootstrap.
        divergences: Where its answers differ from plain decoding.
    """
    answers = decoded.answers(method)
    pairs = list(zip(decoded.answers(PLAIN), answers, strict=True))
    counts = np.array(
        [
            [p.decode_seconds, p.decoded_tokens, a.decode_seconds, a.decoded_tokens, steps]
            for p, a in pairs
            for steps in [len(a.answer.steps)]
        ],
        np.float64,
    )
    rate, speedup, acceptance_length = bootstrap(counts, _ratios, seed)
    tpots = [tpot for a in answers if (tpot := a.tpot_seconds) is not None]
    return MethodSpeed(
        dataset=decoded.dataset,
        method=method,
        temperature=decoded.temperature,
        samples=len(answers),
        tokens=sum(len(a.answer.token_ids) for a in answers),
        tpot_seconds=median(tpots),
        tpot_seconds_quartiles=quartiles(tpots),
        ttft_seconds=statistics.median(a.ttft_seconds for a in answers),
        tokens_per_second=rate.value,
        speedup=speedup,
        acceptance_length=acceptance_length,
        acceptance_per_position=acceptance_per_position(answers, draft_length),
        mean_draft_length=mean(drafted for a in answers for drafted, _ in a.answer.steps),
        identical_share=identical_share((p.answer.token_ids, a.answer.token_ids) for p, a in pairs),
        divergences=tuple(divergences),
    )


def acceptance_per_position(
    answers: Sequence[DecodedAnswer], draft_length: int
) -> tuple[float | None, ...]:
    """Return the share that accepted each position, of the verifications that drafted as far.

    Args:
        answers: Whose verifications to count.
        draft_length: How many positions; None stands where no proposal was so long.
    """
    steps = [step for a in answers for step in a.answer.steps]
    return tuple(
        mean(float(accepted >= position) for drafted, accepted in steps if drafted >= position)
        for position in range(1, draft_length + 1)
    )


def average(results: Sequence[MethodSpeed]) -> list[MethodAverage]:
    """Return the means over datasets, of each method at each temperature."""
    groups: dict[tuple[str, float], list[MethodSpeed]] = {}
    for row in results:
        groups.setdefault((row.method, row.temperature), []).append(row)
    return [
        MethodAverage(
            method,
            temperature,
            geometric_mean(row.speedup.value for row in rows),
            mean(row.acceptance_length.value for row in rows),
            sum(row.identical_share for row in rows) / len(rows),
        )
        for (method, temperature), rows in groups.items()
    ]


def _ratios(totals: Float[np.ndarray, "rows 5"]) -> Float[np.ndarray, "rows 3"]:
    """Return tokens per second, speed-up and tokens per verification; not finite if undefined."""
    plain_seconds, plain_tokens, seconds, tokens, steps = totals.T
    speedup = (plain_seconds / plain_tokens) / (seconds / tokens)
    return np.stack([tokens / seconds, speedup, tokens / steps], axis=1)
