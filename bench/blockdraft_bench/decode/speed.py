"""The arithmetic of decoding speed: time per token, speed-up, acceptance, with intervals.

Seconds and tokens are those after an answer's first token, unless the name says otherwise. Speeds
are ratios of sums over the answers of a dataset, and the speed-up is a ratio of two of them over
the same samples.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from blockdraft_bench.common.answers import (
    PLAIN,
    Answer,
    mean_speed_ratio,
    speed,
    speed_ratio,
)
from blockdraft_bench.common.statistics import (
    bootstrap,
    bootstrap_mean,
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
    [acceptance_length] = bootstrap(_tokens_and_steps(answers), _tokens_per_step, seed)
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


def average(answered: Sequence[Answered], methods: Iterable[str], seed: int) -> list[MethodAverage]:
    """Return the means over datasets, of each method at each temperature.

    Args:
        answered: The samples of every dataset and temperature.
        methods: Which methods.
        seed: Of the bootstrap.
    """
    by_temperature: dict[float, list[Answered]] = {}
    for each in answered:
        by_temperature.setdefault(each.temperature, []).append(each)
    return [
        _average([each.answers for each in group], method, temperature, seed)
        for temperature, group in by_temperature.items()
        for method in methods
    ]


def _average(
    group: Sequence[Mapping[str, Sequence[Answer]]], method: str, temperature: float, seed: int
) -> MethodAverage:
    pairs = [(answers[method], answers[PLAIN]) for answers in group]
    counts = [_tokens_and_steps(own) for own, _ in pairs]
    shares = [
        identical_share((a.token_ids, b.token_ids) for a, b in zip(plain, own, strict=True))
        for own, plain in pairs
    ]
    return MethodAverage(
        method,
        temperature,
        mean_speed_ratio(pairs, seed),
        bootstrap_mean(counts, _tokens_per_step, lambda lengths: lengths.mean(0), seed),
        sum(shares) / len(shares),
    )


def _tokens_and_steps(answers: Sequence[Answer]) -> Float[np.ndarray, "answers 2"]:
    return np.array([(a.timed_tokens, len(a.steps)) for a in answers], np.float64)


def _tokens_per_step(totals: Float[np.ndarray, "rows 2"]) -> Float[np.ndarray, "rows 1"]:
    return np.asarray(totals[:, :1] / totals[:, 1:])
