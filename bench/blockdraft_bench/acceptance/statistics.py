"""The arithmetic of acceptance: τ, acceptance by position and its decay, with intervals.

Over the verifications that measure the drafter (`Answer.full_steps`), with K drafted tokens each:

* τ is the mean number of tokens gained: accepted + 1, the target's own token.
* Acceptance at position k is the share in which the k-th drafted token was accepted, which
  includes that all before it were.
* Conditional acceptance at k is the share among those in which all before k were accepted.
* Decay at k is conditional acceptance at k + 1 over that at k: 1 means that drafts do not get
  worse with the distance from the anchor.

All are ratios of sums over answers, and each 95 % interval is a percentile bootstrap over answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.bootstrap import percentile_interval, resampled_totals


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured number.

    Attributes:
        value: The number; None if nothing measured it.
        ci95: Its 95 % interval; None with fewer than two answers, which tell nothing of others.
    """

    value: float | None
    ci95: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class DatasetAcceptance:
    """What the drafter gains on one dataset at one temperature.

    Attributes:
        dataset: Name of the dataset.
        temperature: Of the target; 0 is greedy.
        samples: Answers.
        tokens: Tokens of all answers.
        verifications: All verifications, those that do not measure the drafter included.
        steps: Verifications that do.
        acceptance_length: τ.
        per_position: Acceptance at each position.
        conditional: Acceptance at each position given that all before were accepted.
        decay: Conditional acceptance at each position but the first over that before it.
        identical_share: Share of answers whose tokens are those of plain decoding.
        reach_counts: For each answer, verifications that accepted at least 0, 1, ... K tokens.
    """

    dataset: str
    temperature: float
    samples: int
    tokens: int
    verifications: int
    steps: int
    acceptance_length: Estimate
    per_position: tuple[Estimate, ...]
    conditional: tuple[Estimate, ...]
    decay: tuple[Estimate, ...]
    identical_share: float
    reach_counts: tuple[tuple[int, ...], ...]


def summarize(
    dataset: str,
    temperature: float,
    drafted: Sequence[Answer],
    plain: Sequence[Answer],
    *,
    draft_length: int,
    seed: int,
) -> DatasetAcceptance:
    """Sum up the answers to one dataset.

    Args:
        dataset: Its name.
        temperature: Of the target.
        drafted: Answers decoded with drafting; at least one.
        plain: Answers to the same prompts, in the same order, decoded without.
        draft_length: Tokens of a whole proposal.
        seed: Of the bootstrap.
    """
    counts = reach_counts(drafted, draft_length)
    totals = counts.sum(axis=0, keepdims=True).astype(np.float64)
    measured = _ratios(totals)
    resampled = _ratios(resampled_totals(counts, seed)) if len(drafted) > 1 else None
    estimates = [
        Estimate(
            float(measured[0, column]) if np.isfinite(measured[0, column]) else None,
            percentile_interval(resampled[:, column]) if resampled is not None else None,
        )
        for column in range(measured.shape[1])
    ]
    same = [a.token_ids == b.token_ids for a, b in zip(drafted, plain, strict=True)]
    return DatasetAcceptance(
        dataset=dataset,
        temperature=temperature,
        samples=len(drafted),
        tokens=sum(len(answer.token_ids) for answer in drafted),
        verifications=sum(len(answer.steps) for answer in drafted),
        steps=int(totals[0, 0]),
        acceptance_length=estimates[0],
        per_position=tuple(estimates[1 : 1 + draft_length]),
        conditional=tuple(estimates[1 + draft_length : 1 + 2 * draft_length]),
        decay=tuple(estimates[1 + 2 * draft_length :]),
        identical_share=sum(same) / len(same),
        reach_counts=tuple(tuple(row) for row in counts.tolist()),
    )


def reach_counts(answers: Sequence[Answer], draft_length: int) -> Int[np.ndarray, "answers reach"]:
    """Return, for each answer, how many verifications accepted at least 0, 1, ... K tokens."""
    counts = np.zeros((len(answers), draft_length + 1), np.int64)
    for row, answer in zip(counts, answers, strict=True):
        for accepted in answer.full_steps(draft_length):
            row[: accepted + 1] += 1
    return counts


def _ratios(
    reached: Float[np.ndarray, "resamples reach"],
) -> Float[np.ndarray, "resamples statistics"]:
    """Return τ, acceptance, conditional acceptance and decay; NaN where nothing was measured."""
    with np.errstate(invalid="ignore"):  # 0 / 0; nothing else can be divided by 0 here
        steps = reached[:, :1]
        # A verification that gained n tokens accepted at least 0, ... and at least n - 1.
        length = reached.sum(axis=1, keepdims=True) / steps
        conditional = reached[:, 1:] / reached[:, :-1]
        decay = conditional[:, 1:] / conditional[:, :-1]
        return np.concatenate([length, reached[:, 1:] / steps, conditional, decay], axis=1)
