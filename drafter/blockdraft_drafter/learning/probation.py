"""The probation of a version in service: the one before returns if fewer tokens are gained."""

from collections import deque
from collections.abc import Sequence

from blockdraft_drafter.learning.comparison import SequenceGain, allowed_error, compare

# Sequences of a version that are remembered, the newest ones.
WINDOW = 1024
# The first evaluation is made when the new version has ended so many sequences, another at each
# doubling, up to the window; then the version has passed.
FIRST_EVALUATION = 64
# Chance that a version as good as the one before is rolled back, over all evaluations together.
FALSE_ALARMS = 0.01
# Fewer sequences of the old version say too little to be compared with.
MIN_SEQUENCES = 32


class Probation:
    """Compares a version with the one before, by sequences that one alone drafted for."""

    def __init__(self, old: Sequence[SequenceGain] = ()) -> None:
        """Begin a version; `old` are the sequences of the one before, if it is to be compared."""
        self.new: deque[SequenceGain] = deque(maxlen=WINDOW)
        self._old = list(old)
        self._evaluations, self._next_evaluation = 0, FIRST_EVALUATION

    @property
    def over(self) -> bool:
        """Whether the version has passed, or there is nothing to compare it with."""
        return len(self._old) < MIN_SEQUENCES or self._next_evaluation > WINDOW

    def add(self, gain: SequenceGain) -> None:
        """Add a sequence."""
        self.new.append(gain)

    def evaluate(self) -> str | None:
        """Return, in words, how τ fell, if the version must be rolled back; on any thread."""
        if self.over or len(self.new) < self._next_evaluation:
            return None
        self._next_evaluation *= 2
        self._evaluations += 1
        # The newest ones are pairs: they were asked for at the most similar times.
        comparison = compare(list(self.new)[::-1], self._old[::-1])
        if comparison.bad_luck > allowed_error(self._evaluations, FALSE_ALARMS):
            return None
        return (
            f"τ in service fell from {comparison.old:.3f} to {comparison.new:.3f}, by luck with a"
            f" chance of {comparison.bad_luck:.1g}"
        )
