"""Where the newest tokens of a sequence occurred before: chains of equal pairs, as in LZ77.

Every position is chained to the previous one that follows the same two tokens. To find the longest
earlier occurrence of the newest tokens, a few positions of their chain are compared backwards,
newest first. So adding a token costs one access to a dictionary, a search costs a bounded number of
comparisons, and memory is linear: a suffix automaton took 3 to 9 times as long and 25 to 90 times
as much memory for the same tokens. A search misses an occurrence further back than `CANDIDATES`
others; an occurrence that was found is followed on, however far back it is.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST_MATCH = 2
"""Tokens that must agree for a position to be compared."""
LONGEST_MATCH = 32
"""Tokens that are compared; longer matches are as good as this."""
CANDIDATES = 16
"""Positions that are compared in a search."""

_NOWHERE = -1
# Above any token id, so that a pair of them is one number.
_PAIR_SHIFT = 32


@dataclass(frozen=True, slots=True)
class Match:
    """An earlier occurrence of the newest tokens."""

    length: int  # how many of them agree, `SHORTEST_MATCH` to `LONGEST_MATCH`
    position: int  # what follows it begins here
    end: int  # length of the sequence it was found for


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a prediction, whether or not it was verified."""

    match_length: int  # tokens that had agreed when it was made
    right: int  # tokens that came as predicted
    missed: bool  # whether another token came after these


class PromptLookup:
    """All earlier occurrences in one sequence, and the match of its newest tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """Read `tokens`, which may only grow; nothing is indexed yet."""
        self._tokens = tokens
        self._last: dict[int, int] = {}
        # By position: the previous one after the same pair.
        self._earlier = array("i", [_NOWHERE] * SHORTEST_MATCH)
        self.match: Match | None = None

    @property
    def behind(self) -> int:
        """How many tokens are not indexed yet."""
        return max(0, len(self._tokens) + 1 - len(self._earlier))

    def index(self, most: int) -> int:
        """Index up to `most` further tokens, and return how many."""
        tokens, last, earlier = self._tokens, self._last, self._earlier
        start = len(earlier)
        stop = min(start + most, len(tokens) + 1)
        for position in range(start, stop):
            pair = tokens[position - 2] << _PAIR_SHIFT | tokens[position - 1]
            earlier.append(last.get(pair, _NOWHERE))
            last[pair] = position
        return max(0, stop - start)

    def search(self) -> Outcome | None:
        """Find the present match, and return what became of the previous one.

        None if there was none, or nothing came since.
        """
        previous, followed, outcome = self.match, None, None
        if previous is not None:
            added = len(self._tokens) - previous.end
            if not added:
                return None
            right = self._right(previous)
            outcome = Outcome(previous.length, right, missed=right < added)
            if not outcome.missed:
                length = min(previous.length + right, LONGEST_MATCH)
                followed = Match(length, previous.position + right, previous.end + right)
        self.match = self._longest(followed)
        return outcome

    def continuation(self, count: int) -> tuple[int, ...]:
        """Return the `count` tokens that follow the match; none without one.

        Where they reach the newest token they go on from the beginning: what repeated itself is
        expected to do so again.
        """
        if self.match is None:
            return ()
        position, period = self.match.position, self.match.end - self.match.position
        following = tuple(self._tokens[position : position + min(count, period)])
        return (following * -(-count // period))[:count]

    def _longest(self, known: Match | None) -> Match | None:
        """Return the longest earlier occurrence of the newest tokens, of equals the latest."""
        tokens = self._tokens
        end = len(tokens)
        best, best_at = (known.length, known.position) if known else (SHORTEST_MATCH - 1, _NOWHERE)
        if end <= SHORTEST_MATCH or best >= LONGEST_MATCH:
            return known
        position = self._last.get(tokens[-2] << _PAIR_SHIFT | tokens[-1], _NOWHERE)
        if position == end:
            position = self._earlier[position]
        for _ in range(CANDIDATES):
            if position == _NOWHERE:
                break
            # A position that does not agree beyond the best so far is not compared further.
            if position > best and tokens[position - best - 1] == tokens[end - best - 1]:
                length = self._agreeing(position)
                if length > best:
                    best, best_at = length, position
                    if best == LONGEST_MATCH:
                        break
            position = self._earlier[position]
        return Match(best, best_at, end) if best_at != _NOWHERE else None

    def _agreeing(self, position: int) -> int:
        """Return how many tokens before a position are the newest ones."""
        tokens, end = self._tokens, len(self._tokens)
        most = min(position, LONGEST_MATCH)
        length = SHORTEST_MATCH
        while length < most and tokens[position - length - 1] == tokens[end - length - 1]:
            length += 1
        return length

    def _right(self, match: Match) -> int:
        """Return how many of the tokens added since a match was found are those that follow it."""
        tokens, position, end = self._tokens, match.position, match.end
        # No wrapping needed: what follows the former end has been added since.
        added = len(tokens) - end
        for offset in range(added):
            if tokens[position + offset] != tokens[end + offset]:
                return offset
        return added
