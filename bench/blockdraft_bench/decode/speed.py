"""The arithmetic of decoding speed: time per token, speed-up, acceptance, with intervals.

Seconds and tokens are those after an answer's first token, unless the name says otherwise. Speeds
are ratios of sums over the answers of a dataset, and the speed-up is a ratio of two of them over
the same samples.
"""

import statistics
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from blockdraft_bench.common.answers import PLAIN, Answer, speed, speed_ratio
from blockdraft_bench.common.statistics import (
    bootstrap,
    geometric_mean,
    identical_share,
    mean,
    median,
    quartiles,
)
from blockdraft_bench.decode.report import Divergence, MethodAverage, MethodSpeed
from blockdraft_bench.engine.samples import Answered


def summarize_method(
    answered: Answered,
    method: str,
    *,
    draft_length: int,
    seed: int,
    divergences: Sequence[Divergence] = (),
) -> MethodSpeed:
    """Sum up what one method did on one dataset.

    Args:
        answered: The samples, at least one.
        method: Which method.
        draft_length: Tokens of its whole proposal, 0 for plain decoding.
        seed: Of the bootstrap.
        divergences: Where its answers differ from plain decoding.
    """
    answers, plain = answered.answers[method], answered.answers[PLAIN]
    counts = np.array([(a.timed_tokens, len(a.steps)) for a in answers], np.float64)
    [acceptance_length] = bootstrap(counts, _tokens_per_step, seed)
    tpots = [a.decode_seconds / a.timed_tokens for a in answers if a.timed_tokens]
    return MethodSpeed(
        dataset=answered.dataset,
        method=method,
        temperature=answered.temperature,
        samples=len(answers),
        tokens=sum(len(a.token_ids) for a in answers),
        tpot_seconds=median(tpots),
        tpot_seconds_quartiles=quartiles(tpots),
        ttft_seconds=statistics.median(a.ttft_seconds for a in answers),
        tokens_per_second=speed(answers),
        speedup=speed_ratio(answers, plain, seed),
        acceptance_length=acceptance_length,
        acceptance_per_position=acceptance_per_position(answers, draft_length),
        mean_draft_length=mean(drafted for a in answers for drafted, _ in a.steps),
        identical_share=identical_share(
            (a.token_ids, b.token_ids) for a, b in zip(plain, answers, strict=True)
        ),
        divergences=tuple(divergences),
    )


def acceptance_per_position(
    answers: Sequence[Answer], draft_length: int
) -> tuple[float | None, ...]:
    """Return the share that accepted each position, of the verifications that drafted as far.

    Args:
        answers: Whose verifications to count.
        draft_length: How many positions; None stands where no proposal was so long.
    """
    steps = [step for answer in answers for step in answer.steps]
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


def _tokens_per_step(totals: Float[np.ndarray, "rows 2"]) -> Float[np.ndarray, "rows 1"]:
    return np.asarray(totals[:, :1] / totals[:, 1:])
