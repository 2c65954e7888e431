"""Estimates of how often drafted tokens are right, learned from each step; no I/O, no clock.

For the drafter, estimates are by position in the draft. A drafter may end a draft before it has as
many tokens as were asked for, so two things are learned of a position: how likely a draft goes on
to it, which says what drafts cost, and how likely a token is gained there. Where a draft has ended,
none is. For prompt lookup, estimates are by length of the match.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from blockdraft_verifier.prompt_lookup import LONGEST_MATCH, PredictionOutcome

# With this weight the last ~20 drafts decide an estimate.
LEARNING_RATE = 0.05
# The prior counts as much as so many drafts, so the first drafts teach most.
PRIOR_WEIGHT = 4
# From so many trials on, a mean would move less than that.
SETTLED_TRIALS = 1 / LEARNING_RATE - PRIOR_WEIGHT
# Before anything is measured, assume a usable drafter, so that it gets measured. Tokens far into a
# draft are seldom tested: to assume more of them makes drafts too long.
PRIOR_ACCEPTANCE = 0.5
# A drafter whose first token is right less often than this is not worth a probe.
HOPELESS_ACCEPTANCE = 0.1
# Rates for matches of 1, 2, 3-4, 5-8, 9-16 and 17-32 tokens. They are low: each step teaches,
# whether or not anything was drafted, so a wrong guess costs a few tokens' gain and no time.
PRIOR_OF_MATCHES = (0.0, 0.2, 0.3, 0.4, 0.6, 0.8)


def _learn(rates: list[float], trials: list[int], place: int, hit: bool) -> None:
    """Move a rate towards an outcome: a mean, until the last trials alone decide."""
    tried = trials[place] = trials[place] + 1
    weight = 1 / (PRIOR_WEIGHT + tried) if tried < SETTLED_TRIALS else LEARNING_RATE
    rates[place] += weight * (hit - rates[place])


@dataclass(slots=True)
class AcceptanceEstimate:
    """Running estimate of acceptance by draft position, given that all before were accepted."""

    # How likely a token is gained at each position, if it is asked for.
    by_position: list[float] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)  # how often each was tested
    # How likely a draft has a token at each position, if it is asked for and there is one at the
    # position before; 1 where nothing is known.
    going_on: list[float] = field(default_factory=list)
    length_trials: list[int] = field(default_factory=list)  # how often each of these was tested

    @property
    def count(self) -> int:
        """Number of drafts learned from."""
        return self.trials[0] if self.trials else 0

    @property
    def hopeless(self) -> bool:
        """Whether not even the first drafted token is worth a probe."""
        return bool(self.by_position) and self.by_position[0] < HOPELESS_ACCEPTANCE

    def successor(self) -> "AcceptanceEstimate":
        """Return an estimate that takes this one as its prior."""
        return AcceptanceEstimate(list(self.by_position), going_on=list(self.going_on))

    def update(
        self,
        drafted: int,
        accepted: int,
        *,
        ended_early: bool = False,
        forced: Collection[int] = (),
    ) -> None:
        """Learn from one verification; tokens at `forced` positions were not the drafter's."""
        length = drafted + ended_early
        # Positions after the first miss, or after a draft's end, were not tested.
        tested = min(accepted + 1, length)
        _lengthen(self.by_position, self.trials, tested, PRIOR_ACCEPTANCE)
        _lengthen(self.going_on, self.length_trials, length, 1.0)
        for position in range(length):
            if position in forced:
                continue
            if position < tested:
                _learn(self.by_position, self.trials, position, position < accepted)
            _learn(self.going_on, self.length_trials, position, position < drafted)

    def accepted_of(self, length: int) -> float:
        """Return how many of `length` tokens are expected to be accepted."""
        return sum(_alive(self.by_position, length, PRIOR_ACCEPTANCE), 0.0)

    def draft_survival(self, length: int) -> list[float]:
        """Return the chances that a draft has 1, 2, ... tokens if it is asked for `length`."""
        return _alive(self.going_on, length, 1.0)


class MatchAcceptance:
    """Running estimate of how often the next token is right, by range of match lengths."""

    def __init__(self, prior: Sequence[float] = PRIOR_OF_MATCHES) -> None:
        """Start from rates by range of match lengths, learned from other texts."""
        self._rates = list(prior)
        self._trials = [0] * len(prior)

    def successor(self) -> "MatchAcceptance":
        """Return an estimate that takes this one as its prior."""
        return MatchAcceptance(self._rates)

    def survival(self, match_length: int, count: int) -> list[float]:
        """Return the chances that the first 1, 2, ... `count` tokens are all right."""
        lengths = range(match_length, match_length + count)
        return list(accumulate((self._rates[_range_of(length)] for length in lengths), mul))

    def update(self, outcome: PredictionOutcome) -> None:
        """Learn from the outcome of a prediction: each right token made the match longer."""
        for offset in range(outcome.right + outcome.missed):
            place = _range_of(outcome.match_length + offset)
            _learn(self._rates, self._trials, place, offset < outcome.right)


class ExpectedDrafts(NamedTuple):
    """Expectations of drafts of 0, 1, 2, ... tokens for several sequences together.

    `accepted` and `drafted` are tokens of all sequences, `passes` those of the longest draft.
    """

    accepted: Float[np.ndarray, " lengths"]
    drafted: Float[np.ndarray, " lengths"]
    passes: Float[np.ndarray, " lengths"]


def expected_drafts(estimates: Sequence[AcceptanceEstimate], max_length: int) -> ExpectedDrafts:
    """Return the expectations of drafts of 0, 1, ... `max_length` tokens."""
    right = _padded([estimate.by_position for estimate in estimates], max_length, PRIOR_ACCEPTANCE)
    there = _padded([estimate.going_on for estimate in estimates], max_length, 1.0)
    survivals = np.cumprod(there, axis=1)
    return ExpectedDrafts(
        _sums(np.cumprod(right, axis=1).sum(axis=0)),
        _sums(survivals.sum(axis=0)),
        _sums(1.0 - np.prod(1.0 - survivals, axis=0)),
    )


def expected_longest(survivals: Sequence[Sequence[float]]) -> float:
    """Return the expected length of the longest of several drafts, in tokens.

    Drafts end independently of each other.
    """
    padded = _padded(survivals, max(map(len, survivals), default=0), 0.0)
    return float((1.0 - np.prod(1.0 - padded, axis=0)).sum())


def _range_of(match_length: int) -> int:
    return (min(match_length, LONGEST_MATCH) - 1).bit_length()


def _lengthen(rates: list[float], trials: list[int], length: int, prior: float) -> None:
    rates += [prior] * (length - len(rates))
    trials += [0] * (len(rates) - len(trials))


def _padded(
    rows: Sequence[Sequence[float]], length: int, fill: float
) -> Float[np.ndarray, "rows length"]:
    """Return rows cut to `length`, or filled up to it."""
    padded = [[*row[:length], *[fill] * (length - len(row))] for row in rows]
    return np.array(padded, np.float64).reshape(len(rows), length)


def _alive(conditional: Sequence[float], length: int, prior: float) -> list[float]:
    """Return the chances that all goes well up to each of `length` positions."""
    chances = [*conditional[:length], *[prior] * (length - len(conditional))]
    return list(accumulate(chances, mul))


def _sums(by_position: Float[np.ndarray, " positions"]) -> Float[np.ndarray, " lengths"]:
    return np.concatenate([[0.0], np.cumsum(by_position)])
