"""The arithmetic of acceptance: τ, acceptance by position and its decay, with intervals.

Over the verifications that measure the drafter (`Answer.full_steps`), with K drafted tokens each:

* τ is the mean number of tokens gained: accepted + 1, the target's own token.
* Acceptance at position k is the share in which the k-th drafted token was accepted, which
  includes that all before it were.
* Conditional acceptance at k is the share among those in which all before k were accepted.
* Decay at k is conditional acceptance at k + 1 over that at k: 1 means that drafts do not get
  worse with the distance from the anchor.

All are ratios of sums over answers.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from blockdraft_bench.acceptance.report import DatasetAcceptance
from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.statistics import bootstrap, identical_share


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
    length, *shares = bootstrap(counts, _ratios, seed)
    pairs = zip(drafted, plain, strict=True)
    return DatasetAcceptance(
        dataset=dataset,
        temperature=temperature,
        samples=len(drafted),
        tokens=sum(len(answer.token_ids) for answer in drafted),
        verifications=sum(len(answer.steps) for answer in drafted),
        steps=int(counts[:, 0].sum()),
        acceptance_length=length,
        acceptance_per_position=tuple(shares[:draft_length]),
        conditional_acceptance_per_position=tuple(shares[draft_length : 2 * draft_length]),
        acceptance_decay=tuple(shares[2 * draft_length :]),
        identical_share=identical_share((a.token_ids, b.token_ids) for a, b in pairs),
        reach_counts=tuple(tuple(row) for row in counts.tolist()),
    )


def reach_counts(answers: Sequence[Answer], draft_length: int) -> Int[np.ndarray, "answers reach"]:
    """Return, for each answer, how many verifications accepted at least 0, 1, ... K tokens."""
    counts = np.zeros((len(answers), draft_length + 1), np.int64)
    for row, answer in zip(counts, answers, strict=True):
        for accepted in answer.full_steps(draft_length):
            row[: accepted + 1] += 1
    return counts


def _ratios(reached: Float[np.ndarray, "rows reach"]) -> Float[np.ndarray, "rows numbers"]:
    """Return τ, acceptance, conditional acceptance and decay; NaN where nothing was measured."""
    steps = reached[:, :1]
    # A verification that gained n tokens accepted at least 0, ... and at least n - 1.
    length = reached.sum(axis=1, keepdims=True) / steps
    conditional = reached[:, 1:] / reached[:, :-1]
    decay = conditional[:, 1:] / conditional[:, :-1]
    return np.concatenate([length, reached[:, 1:] / steps, conditional, decay], axis=1)
