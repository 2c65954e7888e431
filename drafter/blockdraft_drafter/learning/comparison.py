"""The test whether drafts gain more tokens with one version than with another; no I/O.

Two versions are compared by pairs of sequences: one held-out sequence decoded with both, or two
that each version served. Steps of a sequence are alike, so the sequence is what varies. If both
versions were equally good, the sign of each pair's difference would be a coin toss. The share of
all tosses that give at least the sum observed is the chance of a gain as large by luck (a sign-flip
test, exact for any number of pairs).

A test that is repeated often enough finds a difference by luck in the end. So the k-th evaluation
may err with a chance of error / (k (k + 1)): these add up to the error that is allowed over all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Differences are rounded to multiples of this share of their sizes' sum, so that all tosses can be
# counted.
_GRID = 1 / 4096


@dataclass(frozen=True, slots=True)
class SequenceGain:
    """A sequence's part of τ: the tokens gained, and its steps with drafts."""

    tokens: int
    steps: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A new version and an old one, over pairs of sequences."""

    pairs: int  # number of pairs
    new: float  # τ over all sequences of the new version
    old: float  # likewise
    luck: float  # chance that it gains as much if it is no better
    bad_luck: float  # chance that it loses as much if it is no worse

    @property
    def gain(self) -> float:
        """Share by which τ is higher."""
        return self.new / self.old - 1


def compare(new: Sequence[SequenceGain], old: Sequence[SequenceGain] | float) -> Comparison:
    """Compare the gains of pairs, those at the same place; without an old version, with a τ."""
    if isinstance(old, float):
        differences = [gain.tokens / gain.steps - old for gain in new]
        overall = old
    else:
        pairs = zip(new, old, strict=False)
        differences = [a.tokens / a.steps - b.tokens / b.steps for a, b in pairs]
        overall = acceptance_length(old)
    return Comparison(
        len(differences),
        acceptance_length(new),
        overall,
        luck=_chance(differences),
        bad_luck=_chance([-difference for difference in differences]),
    )


def allowed_error(evaluation: int, error: float) -> float:
    """Return the chance of being wrong that is left for an evaluation, counted from 1."""
    return error / (evaluation * (evaluation + 1))


def acceptance_length(gains: Sequence[SequenceGain]) -> float:
    """Return τ over sequences with at least one step."""
    return sum(gain.tokens for gain in gains) / sum(gain.steps for gain in gains)


def _chance(differences: Sequence[float]) -> float:
    """Return the chance that tosses of their signs sum up to as much."""
    step = _GRID * sum(map(abs, differences)) or 1.0
    steps = [round(difference / step) for difference in differences]
    largest = sum(map(abs, steps))
    # The chance of every sum from -largest to largest, of the pairs so far.
    chances = np.zeros(2 * largest + 1)
    chances[largest] = 1.0
    for size in map(abs, steps):
        chances = (np.roll(chances, size) + np.roll(chances, -size)) / 2
    return min(1.0, float(chances[largest + sum(steps) :].sum()))
