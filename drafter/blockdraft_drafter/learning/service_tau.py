"""Whether the weights that serve accept as much as those before them did; no I/O.

Only the drafter's own drafts count, of sequences that were drafted for by one version from
beginning to end. Steps of one sequence are alike, so a sequence and not a step is what varies: τ is
a ratio of sums over sequences, and its variance that of a ratio estimator.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

# Sequences of a version that are remembered, the newest ones.
WINDOW = 1024
# The test is made when the new version has ended so many sequences, and at each doubling, up to the
# window; then it has stood the test.
FIRST_LOOK = 64
# How often a version that is as good as the one before may be sent back, all looks together.
FALSE_ALARMS = 0.01
# Fewer sequences of the old version say too little to be compared with.
MIN_SEQUENCES = 32


@dataclass(frozen=True, slots=True)
class Ended:
    """One sequence's part of τ: tokens gained by so many steps with drafts of the drafter."""

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
    steps = sum(each.steps for each in ended)
    count = len(ended)
    if count < 2 or not steps:
        return None
    mean = sum(each.gained for each in ended) / steps
    squares = sum((each.gained - mean * each.steps) ** 2 for each in ended)
    return Tau(mean, squares * count / (count - 1) / steps**2, steps)


def confidence_worse(new: Tau, old: Tau) -> float:
    """Return with which confidence, 0 to 1, a version's τ is below the other's; one-sided.

    Sequences vary the less the less is accepted of them, so that a few with a low mean seem surer
    than they are. The new version's are taken to vary no less than the old one's, of which there
    are more.
    """
    expected = old.variance * old.steps / new.steps
    spread = math.sqrt(max(new.variance, expected) + old.variance)
    if spread == 0.0:
        return float(new.mean < old.mean)
    return NormalDist().cdf((old.mean - new.mean) / spread)


def accepted_of(draft: Sequence[int], committed: Sequence[int], rows: int) -> int | None:
    """Return how many tokens of a draft were accepted; None if it was not verified.

    `committed` are the tokens that did follow its anchor, the next anchor included, and `rows` how
    many positions were committed since, that of the anchor included.
    """
    agreeing = 0
    for drafted, token in zip(draft, committed, strict=False):
        if drafted != token:
            break
        agreeing += 1
    # One that came too late was right where nobody used it.
    return agreeing if agreeing <= rows - 1 else None


@dataclass(slots=True)
class Probation:
    """Watches a version beside `old`, what the one before it did; nothing, if that is empty."""

    old: tuple[Ended, ...]
    new: deque[Ended] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _next_look: int = FIRST_LOOK
    _looks: int = 0

    @property
    def over(self) -> bool:
        """Whether it has stood the test, or there is nothing to compare it with."""
        return len(self.old) < MIN_SEQUENCES or self._next_look > WINDOW

    def add(self, ended: Ended) -> str | None:
        """Take in a sequence; return, in words, how τ fell, if that is to end it."""
        self.new.append(ended)
        if self.over or len(self.new) < self._next_look:
            return None
        self._next_look *= 2
        self._looks += 1
        new, old = estimate(self.new), estimate(self.old)
        if new is None or old is None:
            return None
        confidence = confidence_worse(new, old)
        # Each look may err half as often as the one before: the sum stays below the whole.
        if confidence <= 1 - FALSE_ALARMS / 2**self._looks:
            return None
        return (
            f"τ in service fell from {old.mean:.3f} to {new.mean:.3f}, confidence {confidence:.4f}"
        )
