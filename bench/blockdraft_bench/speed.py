"""The arithmetic of decoding speed: time per token, speed-up, acceptance, with intervals.

Seconds and tokens are those after an answer's first token, unless the name says otherwise. Speeds
are ratios of sums over the answers of a dataset, and the speed-up is a ratio of two of them over
the same samples.
"""

import statistics
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

from blockdraft_bench.answers import (
    PLAIN,
    Answer,
    identical_answers,
    mean_speed_ratio,
    speed,
    speed_ratio,
)
from blockdraft_bench.engine.samples import Answered
from blockdraft_bench.result import Row
from blockdraft_bench.statistics import bootstrap, bootstrap_mean, mean, median, quartiles


def summarize(answered: Answered, method: str, draft_length: int, seed: int) -> Row:
    """Sum up what one method did on one dataset; `draft_length` is 0 for plain decoding."""
    answers, plain = answered.answers[method], answered.answers[PLAIN]
    [acceptance_length] = bootstrap(_tokens_and_steps(answers), _tokens_per_step, seed)
    tpots = [a.decode_seconds / a.timed_tokens for a in answers if a.timed_tokens]
    return {
        "dataset": answered.dataset,
        "method": method,
        "temperature": answered.temperature,
        "samples": len(answers),
        "tokens": sum(len(a.token_ids) for a in answers),
        # Time per token of an answer, over answers.
        "tpot_seconds": median(tpots),
        "tpot_seconds_quartiles": quartiles(tpots),
        "ttft_seconds": statistics.median(a.ttft_seconds for a in answers),
        "tokens_per_second": speed(answers),
        # Plain decoding's seconds per token over this method's.
        "speedup": speed_ratio(answers, plain, seed),
        "acceptance_length": acceptance_length,
        "acceptance_per_position": acceptance_per_position(answers, draft_length),
        "mean_draft_length": mean(drafted for a in answers for drafted, _ in a.steps),
        "identical_share": identical_answers(plain, answers),
    }


def acceptance_per_position(answers: Sequence[Answer], draft_length: int) -> list[float | None]:
    """Return the share that accepted each position, of the verifications that drafted as far.

    None stands where no proposal was so long.
    """
    steps = [step for answer in answers for step in answer.steps]
    return [
        mean(float(accepted >= position) for drafted, accepted in steps if drafted >= position)
        for position in range(1, draft_length + 1)
    ]


def averages(answered: Sequence[Answered], methods: Iterable[str], seed: int) -> list[Row]:
    """Return the means over datasets, each counting the same, of methods at each temperature.

    That of the speed-up is geometric.
    """
    by_temperature: dict[float, list[Answered]] = {}
    for each in answered:
        by_temperature.setdefault(each.temperature, []).append(each)
    rows = []
    for temperature, group in by_temperature.items():
        for method in methods:
            pairs = [(each.answers[method], each.answers[PLAIN]) for each in group]
            counts = [_tokens_and_steps(own) for own, _ in pairs]
            rows.append(
                {
                    "method": method,
                    "temperature": temperature,
                    "speedup": mean_speed_ratio(pairs, seed),
                    "acceptance_length": bootstrap_mean(
                        counts, _tokens_per_step, lambda lengths: lengths.mean(0), seed
                    ),
                    "identical_share": mean(identical_answers(own, plain) for own, plain in pairs),
                }
            )
    return rows


def _tokens_and_steps(answers: Sequence[Answer]) -> Float[np.ndarray, "answers 2"]:
    return np.array([(a.timed_tokens, len(a.steps)) for a in answers], np.float64)


def _tokens_per_step(totals: Float[np.ndarray, "rows 2"]) -> Float[np.ndarray, "rows 1"]:
    return np.asarray(totals[:, :1] / totals[:, 1:])
