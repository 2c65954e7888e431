"""What lookup proposes for all sequences, and how likely it is to be right."""

from collections.abc import Iterable
from dataclasses import dataclass

from blockdraft_verifier.engine.match_acceptance import MatchAcceptance
from blockdraft_verifier.lookup.sequence_lookup import SequenceLookup
from blockdraft_verifier.scheduling.sequence import Sequence

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
