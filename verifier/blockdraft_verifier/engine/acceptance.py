"""What comes of a draft, learned from what was verified; no I/O, no clock.

A drafter may end a draft before it has as many tokens as were asked for, so there are two things to
learn of each position: how likely it is that a draft goes on to it, which says what drafts cost,
and how likely a token is gained there. Where a draft has ended, none is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

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
        by_position: How likely a token is gained at each position, if it is asked for.
        trials: How often each was put to the test.
        going_on: How likely a draft has a token at each position, if it is asked for and there is
            one at the position before; 1 where nothing is known.
        asked: How often each of these was put to the test.
    """

    by_position: list[float] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)
    going_on: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

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
        return AcceptanceEstimate(list(self.by_position), going_on=list(self.going_on))

    def update(self, drafted: int, accepted: int, *, ended_early: bool = False) -> None:
        """Learn from one verification."""
        asked = drafted + ended_early
        # Positions after the first miss, or after a draft's end, were never put to the test.
        for position in range(min(accepted + 1, asked)):
            hit = position < accepted
            _learn(self.by_position, self.trials, position, hit, PRIOR_ACCEPTANCE)
        for position in range(asked):
            _learn(self.going_on, self.asked, position, position < drafted, 1.0)

    def accepted_of(self, length: int) -> float:
        """Return how many of `length` tokens are expected to be accepted."""
        return sum(_alive(self.by_position, length, PRIOR_ACCEPTANCE), 0.0)

    def lasting(self, length: int) -> list[float]:
        """Return how likely a draft of which `length` are wanted has 1, 2, ... tokens."""
        return _alive(self.going_on, length, 1.0)


@dataclass(frozen=True, slots=True)
class ExpectedDrafts:
    """What is expected of drafts of 0, 1, 2, ... tokens for several sequences together.

    Attributes:
        accepted: Tokens accepted, of all sequences.
        drafted: Tokens drafted, of all sequences.
        passes: Tokens of the longest draft.
    """

    accepted: Float[np.ndarray, " lengths"]
    drafted: Float[np.ndarray, " lengths"]
    passes: Float[np.ndarray, " lengths"]


def expected_drafts(estimates: Sequence[AcceptanceEstimate], most: int) -> ExpectedDrafts:
    """Return what comes of drafts of 0, 1, ... `most` tokens."""
    right = _padded([each.by_position for each in estimates], most, PRIOR_ACCEPTANCE)
    there = _padded([each.going_on for each in estimates], most, 1.0)
    lasting = np.cumprod(there, axis=1)
    return ExpectedDrafts(
        _sums(np.cumprod(right, axis=1).sum(axis=0)),
        _sums(lasting.sum(axis=0)),
        _sums(1.0 - np.prod(1.0 - lasting, axis=0)),
    )


def expected_longest(lasting: Sequence[Sequence[float]]) -> float:
    """Return how many tokens the longest of several drafts is expected to have.

    Drafts end independently of each other.
    """
    padded = _padded(lasting, max(map(len, lasting), default=0), 0.0)
    return float((1.0 - np.prod(1.0 - padded, axis=0)).sum())


def _learn(values: list[float], trials: list[int], position: int, hit: bool, prior: float) -> None:
    """Move the mean at a position towards what was seen there."""
    values += [prior] * (position + 1 - len(values))
    trials += [0] * (len(values) - len(trials))
    tried = trials[position] = trials[position] + 1
    rate = 1 / (PRIOR_WEIGHT + tried) if tried < SETTLED_TRIALS else LEARNING_RATE
    values[position] += rate * (hit - values[position])


def _padded(
    rows: Sequence[Sequence[float]], length: int, fill: float
) -> Float[np.ndarray, "rows length"]:
    """Return rows cut to `length`, or filled up to it."""
    padded = [[*row[:length], *[fill] * (length - len(row))] for row in rows]
    return np.array(padded, np.float64).reshape(len(rows), length)


def _alive(conditional: Sequence[float], length: int, prior: float) -> list[float]:
    """Return how likely it goes well up to each of `length` positions."""
    known = [*conditional[:length], *[prior] * (length - len(conditional))]
    return list(accumulate(known, mul))


def _sums(by_position: Float[np.ndarray, " positions"]) -> Float[np.ndarray, " lengths"]:
    return np.concatenate([[0.0], np.cumsum(by_position)])
