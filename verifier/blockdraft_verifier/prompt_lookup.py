"""Earlier occurrences of a sequence's newest tokens: chains of equal pairs, as in LZ77.

They are looked for in the sequence itself and in recent completions of the same tenant. Every
position of a text is chained to the previous one that follows the same two tokens. To find the
longest earlier occurrence of the newest tokens, a few positions of their chain are compared
backwards, newest first. So adding a token costs one access to a dictionary, a search costs a
bounded number of comparisons, and memory is linear: a suffix automaton took 3 to 9 times as long
and 25 to 90 times as much memory for the same tokens. A search misses an occurrence further back
than `CANDIDATES` others; an occurrence that was found is followed on, however far back it is.
"""

from array import array
from collections import OrderedDict
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass

SHORTEST_MATCH = 2
"""Tokens that must agree for a position to be compared."""
LONGEST_MATCH = 32
"""Tokens that are compared; longer matches are as good as this."""
CANDIDATES = 16
"""Positions that are compared in a search."""
MOST_TENANTS = 32
"""Tenants whose recent completions are kept, those that completed anything last."""

_NOWHERE = -1
# After each completion: no token, so that nothing matches beyond it.
_END = -1
# Above any token id, so that a pair of them is one number.
_PAIR_SHIFT = 32


class IndexedText:
    """Tokens that only grow, and for each position the previous one after the same pair."""

    def __init__(self, tokens: MutableSequence[int]) -> None:
        """Read `tokens`; nothing is indexed yet."""
        self.tokens = tokens
        self._last: dict[int, int] = {}
        self._earlier = array("i", [_NOWHERE] * SHORTEST_MATCH)

    @property
    def behind(self) -> int:
        """Tokens that are not indexed yet."""
        return max(0, len(self.tokens) + 1 - len(self._earlier))

    def index(self, max_tokens: int) -> int:
        """Index up to `max_tokens` further tokens, and return how many."""
        tokens, last, earlier = self.tokens, self._last, self._earlier
        start = len(earlier)
        stop = min(start + max_tokens, len(tokens) + 1)
        for position in range(start, stop):
            pair = tokens[position - 2] << _PAIR_SHIFT | tokens[position - 1]
            earlier.append(last.get(pair, _NOWHERE))
            last[pair] = position
        return max(0, stop - start)

    def longest(self, newest: Sequence[int], beyond: int) -> tuple[int, int] | None:
        """Return the length and the end of the longest occurrence of the `newest` tokens.

        Of several as long it is the latest. None if there is none longer than `beyond`.
        """
        tokens, end = self.tokens, len(newest)
        best, best_at = max(beyond, SHORTEST_MATCH - 1), _NOWHERE
        if end < SHORTEST_MATCH or best >= LONGEST_MATCH:
            return None
        position = self._last.get(newest[-2] << _PAIR_SHIFT | newest[-1], _NOWHERE)
        if tokens is newest and position == end:
            position = self._earlier[position]
        for _ in range(CANDIDATES):
            if position == _NOWHERE:
                break
            # A position that does not agree beyond the best so far is not compared further.
            if min(position, end) > best and tokens[position - best - 1] == newest[end - best - 1]:
                length = self._agreeing(newest, position)
                if length > best:
                    best, best_at = length, position
                    if best == LONGEST_MATCH:
                        break
            position = self._earlier[position]
        return None if best_at == _NOWHERE else (best, best_at)

    def _agreeing(self, newest: Sequence[int], position: int) -> int:
        """Return how many tokens before a position equal the newest ones, from the last on."""
        tokens, end = self.tokens, len(newest)
        max_length = min(position, end, LONGEST_MATCH)
        length = SHORTEST_MATCH
        while length < max_length and tokens[position - length - 1] == newest[end - length - 1]:
            length += 1
        return length


class RecentCompletions:
    """The last completions of one tenant: at most `limit` tokens, and half of that at least."""

    def __init__(self, limit: int) -> None:
        """Hold nothing yet."""
        self._limit = limit
        self.text = IndexedText(array("i"))

    def add(self, completion: Sequence[int]) -> None:
        """Remember a completion; matches that were found before keep the text they are in."""
        tokens = self.text.tokens
        tokens.extend([*completion, _END])
        if len(tokens) > self._limit:
            # It is indexed again, step by step.
            self.text = IndexedText(tokens[len(tokens) - self._limit // 2 :])


class RecentOfTenants:
    """The recent completions of each tenant, by its salt; of the `MOST_TENANTS` latest ones."""

    def __init__(self, limit: int) -> None:
        """Keep at most `limit` tokens of each tenant."""
        self._limit = limit
        self._tenants: OrderedDict[bytes, RecentCompletions] = OrderedDict()

    def of(self, salt: bytes) -> RecentCompletions:
        """Return the recent completions of one tenant, which becomes the latest."""
        recent = self._tenants.setdefault(salt, RecentCompletions(self._limit))
        self._tenants.move_to_end(salt)
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        return recent


@dataclass(frozen=True, slots=True)
class Match:
    """An occurrence of the newest tokens in a text."""

    length: int  # how many of them agree, `SHORTEST_MATCH` to `LONGEST_MATCH`
    text: IndexedText
    position: int  # where the tokens that follow it begin
    end: int  # length of the sequence it was found for


@dataclass(frozen=True, slots=True)
class PredictionOutcome:
    """The outcome of a prediction, whether or not it was verified."""

    match_length: int  # tokens that had agreed when it was made
    right: int  # tokens that came as predicted
    missed: bool  # whether another token came after these


class PromptLookup:
    """The match of a sequence's newest tokens, in itself or in another text."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """Look for the newest of `tokens`, which may only grow."""
        self._tokens = tokens
        self.match: Match | None = None

    def search(self, text: IndexedText) -> PredictionOutcome | None:
        """Find the present match in a text, and return the outcome of the previous one.

        None if there was no match, or no token came since.
        """
        previous, followed, outcome = self.match, None, None
        end = len(self._tokens)
        if previous is not None:
            added = end - previous.end
            if not added:
                return None
            right = self._right(previous)
            outcome = PredictionOutcome(previous.length, right, missed=right < added)
            if not outcome.missed:
                length = min(previous.length + right, LONGEST_MATCH)
                followed = Match(length, previous.text, previous.position + right, end)
        longest = text.longest(self._tokens, 0 if followed is None else followed.length)
        self.match = followed if longest is None else Match(longest[0], text, longest[1], end)
        return outcome

    def continuation(self, count: int) -> tuple[int, ...]:
        """Return up to `count` tokens that follow the match; none without one.

        Where they reach the sequence's newest token they go on from the beginning: what repeated
        itself is expected to do so again. Where another completion ends, they end.
        """
        if self.match is None:
            return ()
        tokens, position = self.match.text.tokens, self.match.position
        following = tuple(tokens[position : position + count])
        if tokens is self._tokens:
            return (following * -(-count // max(1, len(following))))[:count]
        return following[: following.index(_END)] if _END in following else following

    def _right(self, match: Match) -> int:
        """Return how many tokens came as a match predicted, up to the first that did not."""
        text, tokens = match.text.tokens, self._tokens
        # No wrapping needed: what follows the former end has been added since, and what ends
        # another completion equals no token.
        added = len(tokens) - match.end
        for offset in range(added):
            if text[match.position + offset] != tokens[match.end + offset]:
                return offset
        return added
