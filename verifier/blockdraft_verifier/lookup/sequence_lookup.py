"""What the earlier text of one sequence says of how it goes on, and whether that came true."""

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft_verifier.lookup.index import LONGEST_MATCH, LookupIndex, Match


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a prediction, whether or not anybody verified it.

    Attributes:
        match_length: Tokens that had agreed when it was made.
        right: Tokens that came as predicted.
        missed: Whether another token came after these.
    """

    match_length: int
    right: int
    missed: bool


class SequenceLookup:
    """Finds and follows the match of one sequence."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """Read `tokens`, which may only grow."""
        self._tokens = tokens
        self._index = LookupIndex(tokens)
        self._match: Match | None = None

    @property
    def behind(self) -> int:
        """How many tokens are not indexed yet."""
        return self._index.behind

    @property
    def match_length(self) -> int:
        """Tokens of the present match; 0 if there is none."""
        return self._match.length if self._match is not None else 0

    def index(self, most: int) -> int:
        """Index up to `most` further tokens, and return how many."""
        return self._index.add(most)

    def look(self) -> Outcome | None:
        """Find the present match.

        Returns:
            What became of the previous one; None if there was none, or nothing came since.
        """
        previous, followed, outcome = self._match, None, None
        if previous is not None:
            added = len(self._tokens) - previous.end
            if not added:
                return None
            right = self._index.right(previous)
            outcome = Outcome(previous.length, right, missed=right < added)
            if not outcome.missed:
                length = min(previous.length + right, LONGEST_MATCH)
                followed = Match(length, previous.position + right, previous.end + right)
        self._match = self._index.find(followed)
        return outcome

    def continuation(self, count: int) -> tuple[int, ...]:
        """Return the `count` tokens that are to follow; none without a match."""
        return self._index.continuation(self._match, count) if self._match is not None else ()
