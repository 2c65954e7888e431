"""How often a continuation found by lookup is right, by how many tokens agreed before it.

A token that was right makes the match longer by one, so one estimate for each range of lengths says
how far any continuation is followed.
"""

from blockdraft_verifier.engine.cost_model import LEARNING_RATE, PRIOR_WEIGHT, SETTLED_TRIALS
from blockdraft_verifier.lookup.index import LONGEST_MATCH
from blockdraft_verifier.lookup.sequence_lookup import Outcome

# Of matches of 1, 2, 3-4, 5-8, 9-16 and 17-32 tokens. On the low side: each step teaches, whether
# or not anything was proposed, so that a wrong guess here costs a few tokens' gain and no time.
PRIOR = (0.0, 0.2, 0.3, 0.4, 0.6, 0.8)


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
        alive, found = 1.0, []
        for offset in range(count):
            alive *= self._rates[_range_of(match_length + offset)]
            found.append(alive)
        return found

    def update(self, outcome: Outcome) -> None:
        """Learn what became of a prediction."""
        for offset in range(outcome.right):
            self._learn(outcome.match_length + offset, right=True)
        if outcome.missed:
            self._learn(outcome.match_length + outcome.right, right=False)

    def _learn(self, match_length: int, *, right: bool) -> None:
        index = _range_of(match_length)
        self._trials[index] += 1
        tried = self._trials[index]
        rate = 1 / (PRIOR_WEIGHT + tried) if tried < SETTLED_TRIALS else LEARNING_RATE
        self._rates[index] += rate * (right - self._rates[index])


def _range_of(match_length: int) -> int:
    return (min(match_length, LONGEST_MATCH) - 1).bit_length()
