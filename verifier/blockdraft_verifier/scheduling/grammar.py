"""The grammar of one output: what may come next, what must, and where the output ends.

llguidance parses; every decision is a function of the tokens so far. So a constrained output is
what plain decoding under the same masks gives, whatever was drafted.

Copies of a matcher share a lexer, which a draft or another output may exhaust. Where that happens,
the sequence waits for a matcher that was compiled for it alone, and drafts no more: it fails only
where plain decoding by itself fails.
"""

from collections.abc import Sequence
from typing import NamedTuple

from llguidance import LLMatcher


class GrammarError(ValueError):
    """An output cannot be followed through its grammar."""


class Guided(NamedTuple):
    """A draft that keeps to a grammar."""

    token_ids: tuple[int, ...]
    forced: tuple[int, ...] = ()  # places in it of tokens that the grammar leaves no choice of
    cut: int = 0  # tokens of the original draft that were dropped from its end


class Grammar:
    """Follows one output through its grammar; it has consumed what was committed, and no draft.

    Attributes:
        matcher: The state of the parser, for computing masks.
        alone: Whether no other output and no draft uses its lexer.
    """

    def __init__(self, compiled: LLMatcher, *, alone: bool = False) -> None:
        """Follow what comes after `compiled`, which stays where it is."""
        self.matcher = compiled.deep_copy()
        self.alone = alone

    @property
    def failed(self) -> bool:
        """Whether the parser gave up, so that its masks mean nothing."""
        return self.matcher.is_error()

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self.matcher.is_stopped() and not self.failed

    def consume(self, token_id: int) -> bool:
        """Go on with a token, and return whether the output ends with it."""
        return self.matcher.consume_token(token_id) and self.ended

    def forces(self, count: int) -> bool:
        """Whether at least so many of the next tokens leave no choice."""
        return not self.alone and len(self.matcher.compute_ff_tokens()) >= count

    def guide(self, drafted: Sequence[int], max_tokens: int) -> Guided:
        """Return up to `max_tokens` tokens to verify in place of a draft.

        Forced tokens take the place of those drafted, and the draft ends before a token that may
        not follow.
        """
        matcher = self.matcher
        tokens: list[int] = []
        forced: list[int] = []
        while not self.alone:
            forced_tokens = matcher.compute_ff_tokens()[: max_tokens - len(tokens)]
            forced_count = matcher.try_consume_tokens(forced_tokens)
            forced.extend(range(len(tokens), len(tokens) + forced_count))
            tokens.extend(forced_tokens[:forced_count])
            draft_tokens = list(drafted[len(tokens) : max_tokens])
            draft_count = matcher.try_consume_tokens(draft_tokens)
            tokens.extend(draft_tokens[:draft_count])
            if not draft_count:
                break
        matcher.rollback(len(tokens))
        if self.failed:
            return Guided((), cut=len(drafted))
        return Guided(tuple(tokens), tuple(forced), max(0, len(drafted) - len(tokens)))


def followed(compiled: LLMatcher, output: Sequence[int]) -> LLMatcher:
    """Return a matcher that has followed an output as plain decoding does, or `GrammarError`."""
    matcher = compiled.deep_copy()
    for token in output:
        # A mask allows the lexer anew what it may take for a step.
        matcher.compute_bitmask()
        matcher.consume_token(token)
    if matcher.is_error():
        raise GrammarError("the grammar cannot follow the output")
    return matcher
