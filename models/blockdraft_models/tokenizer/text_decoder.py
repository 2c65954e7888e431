"""Decoders of tokens as they arrive; the text does not depend on how they are divided."""

import codecs
import itertools
from collections.abc import Callable, Container, Mapping, Sequence

TokenBytes = Callable[[int], bytes]
"""Returns the bytes of a token, none for one that is left out."""


class Utf8Decoder:
    """Decodes tokens whose bytes are UTF-8 together; other bytes become U+FFFD.

    `push` returns the new text that later tokens cannot change, and `finish` the rest.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        """Begin a text."""
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text up to the last whole character."""
        return self._decoder.decode(b"".join(map(self._token_bytes, token_ids)))

    def finish(self) -> str:
        """Return U+FFFD if the text ends within a character."""
        return self._decoder.decode(b"", final=True)


class ByteFallbackDecoder:
    """Decodes tokens of which each is whole characters or a single byte.

    Single bytes in a row are text if they are UTF-8 together; if not, each becomes U+FFFD. This is
    what the `tokenizers` library does, so they have to wait for the token after them.
    """

    def __init__(
        self, token_bytes: TokenBytes, single_bytes: Container[int], *, drops_space: bool
    ) -> None:
        """Begin a text; `drops_space` leaves out the space that it begins with."""
        self._token_bytes, self._single_bytes = token_bytes, single_bytes
        self._drops_space = drops_space
        self._row = b""

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text up to the single bytes at its end."""
        texts = []
        for token_id in token_ids:
            data = self._token_bytes(token_id)
            if token_id in self._single_bytes:
                self._row += data
            elif data:
                texts += [self._end_row(), data.decode()]
        return self._begun("".join(texts))

    def finish(self) -> str:
        """Return the text of the single bytes at the end."""
        return self._begun(self._end_row())

    def _end_row(self) -> str:
        row, self._row = self._row, b""
        try:
            return row.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(row)

    def _begun(self, text: str) -> str:
        if text and self._drops_space:
            self._drops_space = False
            return text.removeprefix(" ")
        return text


class StandInDecoder:
    """Decodes as another decoder, but writes some control tokens as characters that stand for them.

    In text these characters become U+FFFD, so that no text is taken for such a token.
    """

    def __init__(self, decoder: "TextDecoder", characters: Mapping[int, str]) -> None:
        """Begin a text with an unused `decoder` and the stand-ins by token."""
        self._decoder, self._characters = decoder, characters
        self._without = dict.fromkeys(map(ord, characters.values()), "\ufffd")

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that later tokens cannot change; a stand-in ends the text before it."""
        texts = []
        for stands_in, group in itertools.groupby(token_ids, self._characters.__contains__):
            if stands_in:
                texts += [self.finish(), *(self._characters[token_id] for token_id in group)]
            else:
                texts.append(self._decoder.push(list(group)).translate(self._without))
        return "".join(texts)

    def finish(self) -> str:
        """Return the rest of the text."""
        return self._decoder.finish().translate(self._without)


TextDecoder = Utf8Decoder | ByteFallbackDecoder | StandInDecoder
