"""Tokens that the rules of a request forbid.

A mask is an integer with a bit for each token id that may be chosen.
"""

from collections.abc import Collection, Iterable, Sequence


class TokenMasks:
    """The tokens that a sequence may go on with: not all, or not at every place."""

    def __init__(
        self,
        vocab_size: int,
        *,
        allowed: Collection[int] = (),
        bad_words: Collection[tuple[int, ...]] = (),
        min_tokens: int = 0,
        stop_token_ids: Collection[int] = (),
    ) -> None:
        """Allow all tokens, or those listed, but none that would complete a bad word of the output.

        Those that stop are forbidden for `min_tokens` tokens. `ValueError` if nothing is left.
        """
        self._always = _bits(allowed) if allowed else (1 << vocab_size) - 1
        self._always &= ~_bits(word[0] for word in bad_words if len(word) == 1)
        self._min_tokens = min_tokens
        self._at_first = self._always & ~_bits(stop_token_ids if min_tokens else ())
        if not self._at_first:
            raise ValueError("no token is left that may be chosen")
        self._bad_words = [word for word in bad_words if len(word) > 1]
        self._longest = max(map(len, self._bad_words), default=1)

    def along(self, output: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """Return the masks of the token after `output` and of those after each drafted token."""
        begins = len(output) - min(len(output), self._longest - 1)
        tail = (*output[begins:], *drafted)
        masks = []
        for index in range(len(drafted) + 1):
            first = len(output) + index < self._min_tokens
            mask = self._at_first if first else self._always
            before = tail[: len(tail) - len(drafted) + index]
            completing = _bits(word[-1] for word in self._bad_words if _ends(before, word[:-1]))
            # Something has to be chosen, and what the caller allows comes first.
            masks.append(mask & ~completing or mask)
        return masks


def _bits(token_ids: Iterable[int]) -> int:
    places = bytearray()
    for token in token_ids:
        byte, bit = divmod(token, 8)
        places.extend(bytes(max(0, byte + 1 - len(places))))
        places[byte] |= 1 << bit
    return int.from_bytes(places, "little")


def _ends(tokens: tuple[int, ...], end: tuple[int, ...]) -> bool:
    return tokens[-len(end) :] == end
