"""Which texts a grammar accepts, by llguidance itself and the tokens of the default target."""

from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from blockdraft_models.tokenizer.tokenizer import Tokenizer, load_tokenizer
from blockdraft_models.weights.resolve import resolve_target

Part = str | int
"""Text, or the id of a token."""


class Vocabulary:
    """The tokens of the default target, as llguidance wants them."""

    def __init__(self) -> None:
        self.tokenizer: Tokenizer = load_tokenizer(resolve_target("smollm2-135m"))
        control = {token: spelling for spelling, token in self.tokenizer.control_tokens.items()}
        self.eos_token_id = self.tokenizer.eos_token_ids[0]
        self.bos_token_id = self.tokenizer.bos_token_id
        self.special_token_ids = sorted(control)
        self.tokens = [
            control[token].encode() if token in control else self.tokenizer.token_bytes(token)
            for token in range(self.tokenizer.vocab_size)
        ]
        self._known = LLTokenizer(TokenizerWrapper(self))

    def __call__(self, text: bytes) -> list[int]:
        return self.tokenizer.encode(text.decode(errors="replace"))

    def error(self, grammar: str) -> str:
        """Return what is wrong with a grammar, "" if nothing is."""
        return LLMatcher.validate_grammar(grammar, self._known)

    def takes(self, grammar: str, *parts: Part) -> bool | None:
        """Return whether a completion of these parts may end there; None if it cannot be at all.

        What a part ends with is never in one token with what the next one begins with.
        """
        matcher = LLMatcher(self._known, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        tokens = [token for part in parts for token in self._encoded(part)]
        if matcher.try_consume_tokens(tokens) < len(tokens):
            return None
        return bool(matcher.is_accepting())

    def forced(self, grammar: str, *parts: Part) -> str:
        """Return the text that has to follow."""
        matcher = LLMatcher(self._known, grammar, log_level=0)
        assert matcher.consume_tokens([token for part in parts for token in self._encoded(part)])
        return str(matcher.compute_ff_bytes().decode())

    def _encoded(self, part: Part) -> Sequence[int]:
        return self.tokenizer.encode(part) if isinstance(part, str) else [part]
