"""A test whether fewer drafted tokens are accepted from the serving weights than before; no I/O.

Only the drafter's own drafts count, in sequences that one version drafted for from beginning to
end. Steps of one sequence are alike, so the sequence and not the step is the unit that varies: τ is
a ratio of sums over sequences, and its variance that of a ratio estimator.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

# Sequences of a version that are remembered, the newest ones.
WINDOW = 1024
# The first evaluation is made when the new version has ended so many sequences, another at each
# doubling, up to the window; then the version has passed.
FIRST_EVALUATION = 64
# Chance that a version as good as the one before is rolled back, over all evaluations together.
FALSE_ALARMS = 0.01
# Fewer sequences of the old version say too little to be compared with.
MIN_SEQUENCES = 32


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence's part of τ: the tokens gained, and its steps with drafts of the drafter."""

    gained: int
    steps: int


@dataclass(frozen=True, slots=True)
class Tau:
    """An estimate of τ: tokens per step, the variance of that mean, and the steps behind it."""

    mean: float
    variance: float
    steps: int


def estimate(ended: Sequence[Ended]) -> Tau | None:
    """Return τ over sequences; None if there are too few to tell how much they vary."""
    steps = sum(sequence.steps for sequence in ended)
    count = len(ended)
    if count < 2 or not steps:
        return None
    mean = sum(sequence.gained for sequence in ended) / steps
    squares = sum((sequence.gained - mean * sequence.steps) ** 2 for sequence in ended)
    return Tau(mean, squares * count / (count - 1) / steps**2, steps)


def confidence_worse(new: Tau, old: Tau) -> float:
    """Return the confidence, 0 to 1, that a version's τ is below the other's; one-sided.

    Sequences of which little is accepted vary little, so that a few with a low mean seem surer
    than they are. The new version's are assumed to vary no less than the old one's, of which there
    are more.
    """
    expected = old.variance * old.steps / new.steps
    spread = math.sqrt(max(new.variance, expected) + old.variance)
    if spread == 0.0:
        return float(new.mean < old.mean)
    return NormalDist().cdf((old.mean - new.mean) / spread)


def accepted_of(draft: Sequence[int], committed: Sequence[int], rows: int) -> int | None:
    """Return the number of accepted tokens of a draft; None if it was not verified.

    `committed` are the tokens that followed its anchor, the next anchor included, and `rows` is the
    number of positions committed since, that of the anchor included.
    """
    agreeing = 0
    for drafted, token in zip(draft, committed, strict=False):
        if drafted != token:
            break
        agreeing += 1
    # A draft that came too late was not verified, even if its tokens were right.
    return agreeing if agreeing <= rows - 1 else None


@dataclass(slots=True)
class Probation:
    """Compares a version with `old`, the sequences of the one before; does nothing without them."""

    old: tuple[Ended, ...]
    new: deque[Ended] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _next_evaluation: int = FIRST_EVALUATION
    _evaluations: int = 0

    @property
    def over(self) -> bool:
        """Whether the version has passed, or there is nothing to compare it with."""
        return len(self.old) < MIN_SEQUENCES or self._next_evaluation > WINDOW

    def add(self, ended: Ended) -> str | None:
        """Add a sequence; return, in words, how τ fell, if the version must be rolled back."""
        self.new.append(ended)
        if self.over or len(self.new) < self._next_evaluation:
            return None
        self._next_evaluation *= 2
        self._evaluations += 1
        new, old = estimate(self.new), estimate(self.old)
        if new is None or old is None:
            return None
        confidence = confidence_worse(new, old)
        # Each evaluation may err half as often as the one before: the sum stays below the whole.
        if confidence <= 1 - FALSE_ALARMS / 2**self._evaluations:
            return None
        return (
            f"τ in service fell from {old.mean:.3f} to {new.mean:.3f}, confidence {confidence:.4f}"
        )
