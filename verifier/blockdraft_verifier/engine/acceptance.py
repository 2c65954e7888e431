"""How often drafted tokens are right, learned from what was verified; no I/O, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

# With this weight the last ~20 proposals decide an estimate.
LEARNING_RATE = 0.05
# What an estimate starts from counts as much as so many proposals, so the first ones teach most.
PRIOR_WEIGHT = 4
# From so many trials on, a mean would move less than that.
SETTLED_TRIALS = 1 / LEARNING_RATE - PRIOR_WEIGHT
# Before anything is measured, assume a usable drafter, so that it gets measured.
PRIOR_ACCEPTANCE = 0.8
# A drafter whose first token is right less often than this is not worth a try.
HOPELESS_ACCEPTANCE = 0.1


@dataclass(slots=True)
class AcceptanceEstimate:
    """Running estimate of acceptance by draft position, given that all before were accepted.

    A mean of the prior and what was seen, until the last proposals alone decide.

    Attributes:
        by_position: The estimate at each position.
        trials: How often each was put to the test.
    """

    by_position: list[float] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)

    @property
    def proposals(self) -> int:
        """Number of proposals learned from."""
        return self.trials[0] if self.trials else 0

    @property
    def hopeless(self) -> bool:
        """Whether not even the first drafted token is worth a try."""
        return bool(self.by_position) and self.by_position[0] < HOPELESS_ACCEPTANCE

    def successor(self) -> "AcceptanceEstimate":
        """Return an estimate that takes this one as its prior."""
        return AcceptanceEstimate(list(self.by_position))

    def update(self, drafted: int, accepted: int) -> None:
        """Learn from one verification of `drafted` tokens of which `accepted` were right."""
        while len(self.by_position) < drafted:
            self.by_position.append(PRIOR_ACCEPTANCE)
        self.trials += [0] * (len(self.by_position) - len(self.trials))
        by_position, trials = self.by_position, self.trials
        # Positions after the first miss were never put to the test.
        for position in range(min(accepted + 1, drafted)):
            tried = trials[position] = trials[position] + 1
            rate = 1 / (PRIOR_WEIGHT + tried) if tried < SETTLED_TRIALS else LEARNING_RATE
            by_position[position] += rate * ((position < accepted) - by_position[position])


def accepted_of(estimate: AcceptanceEstimate, length: int) -> float:
    """Return how many of `length` drafted tokens are expected to be accepted of one sequence."""
    alive, total = 1.0, 0.0
    by_position = estimate.by_position
    for position in range(length):
        known = position < len(by_position)
        alive *= by_position[position] if known else PRIOR_ACCEPTANCE
        total += alive
    return total


def expected_accepted(
    estimates: Sequence[AcceptanceEstimate], most: int
) -> Float[np.ndarray, " lengths"]:
    """Return how many tokens are accepted of proposals of 0, 1, ... `most` tokens.

    Args:
        estimates: Of each sequence that gets a proposal.
        most: Tokens of the longest.

    Returns:
        The expected sum over all sequences.
    """
    known = [estimate.by_position[:most] for estimate in estimates]
    padded = np.array([each + [PRIOR_ACCEPTANCE] * (most - len(each)) for each in known])
    alive = np.cumprod(padded.reshape(len(known), most), axis=1).sum(axis=0)
    return np.concatenate([[0.0], np.cumsum(alive)])
