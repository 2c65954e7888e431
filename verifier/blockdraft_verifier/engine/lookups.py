"""What lookup proposes for all sequences, and how likely it is to be right; pure Python."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from blockdraft_verifier.engine.acceptance import LEARNING_RATE, PRIOR_WEIGHT, SETTLED_TRIALS
from blockdraft_verifier.lookup import LONGEST_MATCH, Outcome, SequenceLookup
from blockdraft_verifier.scheduling.sequence import Sequence

# Of matches of 1, 2, 3-4, 5-8, 9-16 and 17-32 tokens. On the low side: each step teaches, whether
# or not anything was proposed, so that a wrong guess here costs a few tokens' gain and no time.
PRIOR = (0.0, 0.2, 0.3, 0.4, 0.6, 0.8)
# By match length; there is none of 0 tokens.
_RANGES = (0, *((length - 1).bit_length() for length in range(1, LONGEST_MATCH + 1)))


class MatchAcceptance:
    """Running estimate of how often the next token is right, by range of match lengths."""

    def __init__(self, prior: tuple[float, ...] = PRIOR) -> None:
        """Start from what is known of other texts."""
        self._rates = list(prior)
        self._trials = [0] * len(prior)

    def successor(self) -> "MatchAcceptance":
        """Return an estimate that takes this one as its prior."""
        return MatchAcceptance(tuple(self._rates))

    def survival(self, match_length: int, count: int) -> list[float]:
        """Return how likely it is that the first 1, 2, ... `count` tokens are all right."""
        whole = max(0, min(count, LONGEST_MATCH - match_length))
        ranges = _RANGES[match_length : match_length + whole] + (_RANGES[-1],) * (count - whole)
        return list(accumulate((self._rates[each] for each in ranges), mul))

    def update(self, outcome: Outcome) -> None:
        """Learn what became of a prediction."""
        length, left = outcome.match_length, outcome.right
        while left:
            index = _RANGES[min(length, LONGEST_MATCH)]
            # All lengths of a range together; the last one has no end.
            longest = 1 << index
            count = left if longest == LONGEST_MATCH else min(left, longest + 1 - length)
            self._learn(index, count, 1.0)
            length, left = length + count, left - count
        if outcome.missed:
            self._learn(_RANGES[min(length, LONGEST_MATCH)], 1, 0.0)

    def _learn(self, index: int, count: int, seen: float) -> None:
        """Move a rate towards what was seen `count` times."""
        rate, trials = self._rates[index], self._trials[index]
        self._trials[index] += count
        while count and trials + 1 < SETTLED_TRIALS:
            trials += 1
            count -= 1
            rate += (seen - rate) / (PRIOR_WEIGHT + trials)
        self._rates[index] = seen + (rate - seen) * (1 - LEARNING_RATE) ** count


# About half a millisecond: a long prompt is indexed beside the steps that compute it.
INDEXED_PER_STEP = 1024


@dataclass(slots=True)
class _Followed:
    """One sequence's lookup, and how often it was right."""

    lookup: SequenceLookup
    acceptance: MatchAcceptance


class Lookups:
    """The lookups of all sequences that want them; pure Python."""

    def __init__(self) -> None:
        """Start with none."""
        self._of: dict[Sequence, _Followed] = {}
        self._overall = MatchAcceptance()

    def add(self, sequence: Sequence) -> None:
        """Look up continuations of a new sequence."""
        self._of[sequence] = _Followed(SequenceLookup(sequence.tokens), self._overall.successor())

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence, if it is known."""
        self._of.pop(sequence, None)

    def index(self, running: Iterable[Sequence]) -> None:
        """Index what is new, a bounded number of tokens; the rest is for coming steps."""
        left = INDEXED_PER_STEP
        lookups = [self._of[sequence].lookup for sequence in running if sequence in self._of]
        for lookup in sorted(lookups, key=lambda lookup: lookup.behind):
            left -= lookup.index(left)

    def survival(self, sequence: Sequence, most: int) -> list[float]:
        """Look for a continuation of a sequence, and learn what became of the previous one.

        Returns:
            How likely it is that the first 1, 2, ... tokens are all right; empty if there are none.
        """
        followed = self._of.get(sequence)
        if followed is None:
            return []
        outcome = followed.lookup.look()
        if outcome is not None:
            followed.acceptance.update(outcome)
            self._overall.update(outcome)
        length = followed.lookup.match_length
        return followed.acceptance.survival(length, most) if length else []

    def continuation(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """Return the first tokens of what `survival` spoke of."""
        return self._of[sequence].lookup.continuation(count)
