"""Prompt lookup for each sequence, and how likely it is to be right; pure Python.

Two texts are searched: the sequence itself, and recent completions of its tenant. Of two matches
the one counts that is expected to be right more often. How often either text is right is learned of
each sequence and of all, apart for outputs that have a grammar.
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
from blockdraft_verifier.scheduling.sequence import Draft, DraftSource, TokenSequence

# About half a millisecond: a long prompt is indexed beside the steps that compute it.
INDEXED_PER_STEP = 1024


@dataclass(slots=True)
class Learned:
    """Estimates of how often matches are right, of one sequence or of all like it."""

    in_text: MatchAcceptance = field(default_factory=MatchAcceptance)
    in_recent: MatchAcceptance = field(default_factory=MatchAcceptance)


@dataclass(slots=True)
class Searched:
    """The texts that are searched for one sequence, and its match in each."""

    text: IndexedText
    recent: RecentCompletions | None
    learned: Learned
    of_all: Learned
    in_text: PromptLookup
    in_recent: PromptLookup
    continuation: tuple[int, ...] = ()  # of the match that is expected to be right more often

    def search(self, max_tokens: int) -> list[float]:
        """Find the `continuation`; return the chances that its first 1, 2, ... are all right."""
        learned, of_all = self.learned, self.of_all
        sources = [(self.in_text, self.text, learned.in_text, of_all.in_text)]
        if self.recent is not None:
            recent = self.in_recent, self.recent.text, learned.in_recent, of_all.in_recent
            sources.append(recent)
        best: list[float] = []
        self.continuation = ()
        for prompt_lookup, text, matches, matches_of_all in sources:
            outcome = prompt_lookup.search(text)
            if outcome is not None:
                matches.update(outcome)
                matches_of_all.update(outcome)
            if prompt_lookup.match is not None:
                tokens = prompt_lookup.continuation(max_tokens)
                survival = matches.survival(prompt_lookup.match.length, len(tokens))
                if sum(survival) > sum(best):
                    best, self.continuation = survival, tokens
        return best


class Repetitions:
    """Searches for all sequences that use prompt lookup, and learns from what came."""

    def __init__(self, recent_tokens: int) -> None:
        """Remember so many tokens of the recent completions of a tenant, 0 for none."""
        self._tenants = RecentOfTenants(recent_tokens) if recent_tokens else None
        self._of_all, self._of_constrained = Learned(), Learned()
        self._searched: dict[TokenSequence, Searched] = {}

    def add(self, sequence: TokenSequence) -> None:
        """Start the estimates of a new sequence from those of all others like it."""
        of_all = self._of_all if sequence.grammar is None else self._of_constrained
        tokens, tenants = sequence.tokens, self._tenants
        self._searched[sequence] = Searched(
            IndexedText(tokens),
            None if tenants is None else tenants.of(sequence.request.cache_salt),
            Learned(of_all.in_text.successor(), of_all.in_recent.successor()),
            of_all,
            PromptLookup(tokens),
            PromptLookup(tokens),
        )

    def forget(self, sequence: TokenSequence) -> None:
        """Forget a sequence, but remember its completion."""
        searched = self._searched.pop(sequence, None)
        if searched is not None and searched.recent is not None and sequence.output_count:
            searched.recent.add(sequence.tokens[-sequence.output_count :])

    def index(self, running: Iterable[TokenSequence]) -> None:
        """Index new tokens of texts, a bounded number; later steps index the rest."""
        entries = [self._searched[sequence] for sequence in running if sequence in self._searched]
        recent = dict.fromkeys(entry.recent.text for entry in entries if entry.recent is not None)
        left = INDEXED_PER_STEP
        texts = [*(entry.text for entry in entries), *recent]
        for text in sorted(texts, key=lambda text: text.behind):
            left -= text.index(left)

    def search(self, sequence: TokenSequence, max_tokens: int) -> list[float]:
        """Return the chances that the first 1, 2, ... `max_tokens` tokens found are all right."""
        searched = self._searched.get(sequence)
        return [] if searched is None else searched.search(max_tokens)

    def draft(self, sequence: TokenSequence, count: int) -> Draft:
        """Return a draft of the first `count` tokens that `search` found."""
        return Draft(
            self._searched[sequence].continuation[:count], source=DraftSource.PROMPT_LOOKUP
        )
