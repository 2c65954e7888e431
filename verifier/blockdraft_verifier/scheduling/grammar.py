"""The grammar of one output: what may come next, what must, and where the output ends.

llguidance parses; every decision is a function of the tokens so far. So a constrained output is
what plain decoding under the same masks gives, whatever was drafted.
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
    """

    def __init__(self, compiled: LLMatcher, output: Sequence[int] = ()) -> None:
        """Follow `output`, or raise `GrammarError`; `compiled` stays at its beginning."""
        self._compiled = compiled
        self._output = list(output)
        self.matcher = self._begin_again()

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self.matcher.is_stopped()

    def consume(self, token_id: int) -> bool:
        """Go on with a token, and return whether the output ends with it.

        Raises:
            GrammarError: The parser gave up: a grammar may need too much for some outputs.
        """
        self._output.append(token_id)
        if not self.matcher.consume_token(token_id) or self.matcher.is_error():
            # It may have given up on what was drafted, and must not differ from plain decoding.
            self.matcher = self._begin_again()
        return self.ended

    def forces(self, count: int) -> bool:
        """Whether at least so many of the next tokens leave no choice."""
        return len(self.matcher.compute_ff_tokens()) >= count

    def guide(self, drafted: Sequence[int], most: int) -> Guided:
        """Return up to `most` tokens to verify in place of a draft.

        Forced tokens take the place of those drafted, and the draft ends before a token that may
        not follow.
        """
        matcher = self.matcher
        tokens: list[int] = []
        forced: list[int] = []
        while True:
            must = matcher.compute_ff_tokens()[: most - len(tokens)]
            taken = matcher.try_consume_tokens(must)
            forced.extend(range(len(tokens), len(tokens) + taken))
            tokens.extend(must[:taken])
            may = list(drafted[len(tokens) : most])
            followed = matcher.try_consume_tokens(may)
            tokens.extend(may[:followed])
            if not followed:
                break
        matcher.rollback(len(tokens))
        if matcher.is_error():
            self.matcher = self._begin_again()
            return Guided((), cut=len(drafted))
        return Guided(tuple(tokens), tuple(forced), max(0, len(drafted) - len(tokens)))

    def _begin_again(self) -> LLMatcher:
        matcher = self._compiled.deep_copy()
        if not matcher.consume_tokens(self._output) or matcher.is_error():
            raise GrammarError("the grammar cannot follow the output")
        return matcher
