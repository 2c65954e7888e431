"""The test that lets a candidate replace the version that serves: paired, repeated as it learns.

Both drafters are replayed on the same held-out sequences. If they were equally good, the sign of
each sequence's difference would be a coin toss: the share of all tosses that give at least the gain
observed is the chance of a gain as large by luck (a sign-flip test, exact for any distribution of
the gains that is symmetric when the drafters are equal, at any number of them).

A test that is repeated often enough finds a gain by luck in the end. So the k-th evaluation against
one version may be wrong with a chance of only (1 - confidence) / (k (k + 1)). These add up to
1 - confidence over all evaluations, even if they are dependent. The steps between evaluations
grow, so that the chance left for each does not become too small.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from jaxtyping import Float

from blockdraft_drafter.learning.service_tau import Ended

_TOSSES = 200_000
_AT_ONCE = 10_000
# Steps between two evaluations, as a share of the steps made.
_GROWTH = 0.25
# With fewer sequences not even a gain on all of them would be significant.
LEAST_SEQUENCES = 8


class Verdict(Enum):
    """The outcome of a comparison."""

    PROMOTE = "promote"
    GO_ON = "go on"
    START_OVER = "start over"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidate and current drafter on the same sequences."""

    sequences: int  # number of sequences
    candidate: float  # τ over all of them
    current: float  # likewise
    luck: float  # chance that the candidate gains as much if it is no better
    bad_luck: float  # chance that it loses as much if it is no worse

    @property
    def gain(self) -> float:
        """Share by which τ is higher."""
        return self.candidate / self.current - 1


def compare(
    candidate: Sequence[Ended], current: Sequence[Ended] | float, *, seed: int = 0
) -> Comparison:
    """Compare what each gained on the same sequences, in the same order.

    If no drafter serves, `current` is the τ to surpass.
    """
    ours = np.array([sequence.gained / sequence.steps for sequence in candidate])
    if isinstance(current, float):
        differences, overall = ours - current, current
    else:
        differences = ours - np.array([sequence.gained / sequence.steps for sequence in current])
        overall = _tau(current)
    return Comparison(
        len(ours),
        _tau(candidate),
        overall,
        luck=sign_flip_chance(differences, seed),
        bad_luck=sign_flip_chance(-differences, seed),
    )


def decide(
    comparison: Comparison, evaluation: int, *, confidence: float, least_gain: float
) -> Verdict:
    """Return the verdict of a comparison with the version that serves; `evaluation` counts from 1.

    A promoted candidate is better with this confidence, over all evaluations, and its τ is higher
    by at least a share of `least_gain`.
    """
    allowed = allowed_error(evaluation, confidence)
    if comparison.luck <= allowed and comparison.gain >= least_gain:
        return Verdict.PROMOTE
    return Verdict.START_OVER if comparison.bad_luck <= allowed else Verdict.GO_ON


def allowed_error(evaluation: int, confidence: float) -> float:
    """Return the chance of being wrong that is left for an evaluation, counted from 1."""
    return (1 - confidence) / (evaluation * (evaluation + 1))


def next_evaluation(step: int, first: int) -> int:
    """Return the step of the evaluation after one at `step`; 0 for none yet."""
    return step + max(first, round(step * _GROWTH))


def sign_flip_chance(differences: Float[np.ndarray, " sequences"], seed: int) -> float:
    """Return the chance of a mean at least as high if every sign were a coin toss.

    Estimated from many tosses; the observed signs count as one of them, so it is never 0.
    """
    observed = differences.sum()
    # Rounding must not lift the threshold above the observed sum itself.
    threshold = observed - 1e-9 * np.abs(differences).sum()
    generator = np.random.default_rng(seed)
    as_high = 1
    for _ in range(0, _TOSSES, _AT_ONCE):
        signs = generator.integers(0, 2, (_AT_ONCE, len(differences)), dtype=np.int8) * 2 - 1
        as_high += int((signs @ differences >= threshold).sum())
    return as_high / (_TOSSES + 1)


def _tau(sequences: Sequence[Ended]) -> float:
    return sum(sequence.gained for sequence in sequences) / sum(
        sequence.steps for sequence in sequences
    )
