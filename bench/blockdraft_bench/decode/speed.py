"""The arithmetic of decoding speed: time per token, speed-up, acceptance, with intervals.

Seconds and tokens are those after an answer's first token, unless the name says otherwise. Speeds
are ratios of sums over the answers of a dataset, and the speed-up is a ratio of two of them over
the same samples. Each 95 % interval is a percentile bootstrap over samples.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from blockdraft_bench.acceptance.statistics import Estimate
from blockdraft_bench.common.bootstrap import percentile_interval, resampled_totals
from blockdraft_bench.common.timed_answers import PLAIN, DecodedAnswer, DecodedSet
from blockdraft_bench.decode.divergence import Divergence


@dataclass(frozen=True, slots=True)
class MethodSpeed:
    """How fast one method decodes one dataset at one temperature; None where nothing tells.

    Attributes:
        dataset: Name of the dataset.
        method: Of drafting, or `PLAIN`.
        temperature: Of the target; 0 is greedy.
        samples: Answers.
        tokens: Tokens of all answers, the first ones included.
        tpot_seconds: Time per token of an answer, the median over answers.
        tpot_seconds_quartiles: The first and the third quartile of the same.
        ttft_seconds: Time to the first token, the median over answers.
        tokens_per_second: All tokens over all seconds.
        speedup: Plain decoding's seconds per token over this method's.
        acceptance_length: Tokens gained per verification.
        acceptance_per_position: Share of the verifications of a proposal at least that long in
            which the token at that position was accepted, hence all before it.
        mean_draft_length: Tokens verified per verification.
        identical_share: Share of answers whose tokens are those of plain decoding.
        divergences: Where the others first differ.
    """

    dataset: str
    method: str
    temperature: float
    samples: int
    tokens: int
    tpot_seconds: float | None
    tpot_seconds_quartiles: tuple[float, float] | None
    ttft_seconds: float
    tokens_per_second: float | None
    speedup: Estimate
    acceptance_length: Estimate
    acceptance_per_position: tuple[float | None, ...]
    mean_draft_length: float | None
    identical_share: float
    divergences: tuple[Divergence, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodAverage:
    """One method at one temperature over all datasets, each counting the same.

    Attributes:
        method: Of drafting, or `PLAIN`.
        temperature: Of the target.
        speedup: Geometric mean.
        acceptance_length: Arithmetic mean.
        identical_share: Arithmetic mean.
    """

    method: str
    temperature: float
    speedup: float | None
    acceptance_length: float | None
    identical_share: float


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
    answers, plain = decoded.answers(method), decoded.answers(PLAIN)
    counts = np.array(
        [
            [p.decode_seconds, p.decoded_tokens, a.decode_seconds, a.decoded_tokens, steps]
            for p, a in zip(plain, answers, strict=True)
            for steps in [len(a.answer.steps)]
        ],
        np.float64,
    )
    measured = _ratios(counts.sum(axis=0, keepdims=True))[0]
    resampled = _ratios(resampled_totals(counts, seed)) if len(answers) > 1 else None
    rate, speedup, acceptance_length = (
        Estimate(
            float(value) if np.isfinite(value) else None,
            percentile_interval(resampled[:, column]) if resampled is not None else None,
        )
        for column, value in enumerate(measured)
    )
    tpots = [tpot for a in answers if (tpot := a.tpot_seconds) is not None]
    steps = [step for a in answers for step in a.answer.steps]
    same = [p.answer.token_ids == a.answer.token_ids for p, a in zip(plain, answers, strict=True)]
    return MethodSpeed(
        dataset=decoded.dataset,
        method=method,
        temperature=decoded.temperature,
        samples=len(answers),
        tokens=sum(len(a.answer.token_ids) for a in answers),
        tpot_seconds=statistics.median(tpots) if tpots else None,
        tpot_seconds_quartiles=_quartiles(tpots) if tpots else None,
        ttft_seconds=statistics.median(a.ttft_seconds for a in answers),
        tokens_per_second=rate.value,
        speedup=speedup,
        acceptance_length=acceptance_length,
        acceptance_per_position=acceptance_per_position(answers, draft_length),
        mean_draft_length=statistics.fmean(drafted for drafted, _ in steps) if steps else None,
        identical_share=statistics.fmean(same),
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
    shares: list[float | None] = []
    for position in range(1, draft_length + 1):
        accepted = [accepted >= position for drafted, accepted in steps if drafted >= position]
        shares.append(statistics.fmean(accepted) if accepted else None)
    return tuple(shares)


def average(results: Sequence[MethodSpeed]) -> list[MethodAverage]:
    """Return the means over datasets, of each method at each temperature."""
    averages = []
    for method, temperature in dict.fromkeys((r.method, r.temperature) for r in results):
        chosen = [r for r in results if (r.method, r.temperature) == (method, temperature)]
        speedups = [r.speedup.value for r in chosen if r.speedup.value is not None]
        lengths = [r.acceptance_length.value for r in chosen]
        known = [length for length in lengths if length is not None]
        averages.append(
            MethodAverage(
                method,
                temperature,
                statistics.geometric_mean(speedups) if speedups else None,
                statistics.fmean(known) if known else None,
                statistics.fmean(r.identical_share for r in chosen),
            )
        )
    return averages


def _ratios(totals: Float[np.ndarray, "samples 5"]) -> Float[np.ndarray, "samples 3"]:
    """Return tokens per second, speed-up and tokens per verification; not finite if undefined."""
    plain_seconds, plain_tokens, seconds, tokens, steps = totals.T
    with np.errstate(divide="ignore", invalid="ignore"):  # answers of one token
        speedup = (plain_seconds / plain_tokens) / (seconds / tokens)
        return np.stack([tokens / seconds, speedup, tokens / steps], axis=1)


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    first, third = np.percentile(np.array(values), (25, 75))
    return float(first), float(third)
