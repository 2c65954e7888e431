"""What prompt lookup finds for each sequence, and how likely it is to be right; pure Python.

Two texts are searched: the sequence itself, and recent completions of its tenant. Of what is found
in both, that counts which is expected to be right more often. How often either is right is learned
of each sequence and of all, apart for outputs that have a grammar.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from blockdraft_verifier.engine.acceptance import MatchAcceptance
from blockdraft_verifier.prompt_lookup import (
    IndexedText,
    PromptLookup,
    RecentCompletions,
    RecentOfTenants,
)
from blockdraft_verifier.scheduling.sequence import Draft, DraftSource, Sequence

# About half a millisecond: a long prompt is indexed beside the steps that compute it.
INDEXED_PER_STEP = 1024


@dataclass(slots=True)
class Learned:
    """How often what was found is right, of one sequence or of all like it."""

    own: MatchAcceptance = field(default_factory=MatchAcceptance)
    recent: MatchAcceptance = field(default_factory=MatchAcceptance)


@dataclass(slots=True)
class Searched:
    """The texts that are searched for one sequence, and what was found."""

    text: IndexedText
    recent: RecentCompletions | None
    learned: Learned
    of_all: Learned
    in_text: PromptLookup
    in_recent: PromptLookup
    found: tuple[int, ...] = ()  # what is expected to be right most often

    def search(self, most: int) -> list[float]:
        """Return how likely the first 1, 2, ... of the `found` tokens are all right."""
        learned, of_all = self.learned, self.of_all
        sources = [(self.in_text, self.text, learned.own, of_all.own)]
        if self.recent is not None:
            sources.append((self.in_recent, self.recent.text, learned.recent, of_all.recent))
        best: list[float] = []
        self.found = ()
        for prompt_lookup, text, matches, matches_of_all in sources:
            outcome = prompt_lookup.search(text)
            if outcome is not None:
                matches.update(outcome)
                matches_of_all.update(outcome)
            if prompt_lookup.match is not None:
                tokens = prompt_lookup.continuation(most)
                survival = matches.survival(prompt_lookup.match.length, len(tokens))
                if sum(survival) > sum(best):
                    best, self.found = survival, tokens
        return best


class Repetitions:
    """Searches for all sequences that use prompt lookup, and learns from what came."""

    def __init__(self, recent_tokens: int) -> None:
        """Remember so many tokens of the recent completions of a tenant, 0 for none."""
        self._tenants = RecentOfTenants(recent_tokens) if recent_tokens else None
        self._of_all, self._of_constrained = Learned(), Learned()
        self._searched: dict[Sequence, Searched] = {}

    def add(self, sequence: Sequence) -> None:
        """Expect of a new sequence what was seen of all others like it."""
        of_all = self._of_all if sequence.grammar is None else self._of_constrained
        tokens, tenants = sequence.tokens, self._tenants
        self._searched[sequence] = Searched(
            IndexedText(tokens),
            None if tenants is None else tenants.of(sequence.request.cache_salt),
            Learned(of_all.own.successor(), of_all.recent.successor()),
            of_all,
            PromptLookup(tokens),
            PromptLookup(tokens),
        )

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence, but remember what it completed."""
        searched = self._searched.pop(sequence, None)
        if searched is not None and searched.recent is not None and sequence.output_count:
            searched.recent.add(sequence.tokens[-sequence.output_count :])

    def index(self, running: Iterable[Sequence]) -> None:
        """Index what is new of texts, a bounded number of tokens; the rest is for coming steps."""
        searched = [self._searched[each] for each in running if each in self._searched]
        recent = dict.fromkeys(each.recent.text for each in searched if each.recent is not None)
        left = INDEXED_PER_STEP
        texts = [*(each.text for each in searched), *recent]
        for text in sorted(texts, key=lambda text: text.behind):
            left -= text.index(left)

    def search(self, sequence: Sequence, most: int) -> list[float]:
        """Return how likely the first 1, 2, ... up to `most` tokens found are all right."""
        searched = self._searched.get(sequence)
        return [] if searched is None else searched.search(most)

    def draft(self, sequence: Sequence, count: int) -> Draft:
        """Return the first `count` tokens of what was found."""
        return Draft(self._searched[sequence].found[:count], source=DraftSource.PROMPT_LOOKUP)
