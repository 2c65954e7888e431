"""Lines that break between words, while the text still arrives."""

import re

# A word with the white space before it, or a line break.
_PIECE = re.compile(r"\n|[^\S\n]*\S+")
# Colours take no place.
_COLOR = re.compile(r"\x1b\[\d+m")


class WordWrapper:
    """Breaks the lines of a text that comes in pieces, so that no word is cut."""

    def __init__(self, width: int) -> None:
        """Begin a line of at most `width` characters; a longer word stays as it is."""
        self._width = width
        self._column = 0
        self._pending = ""  # the last word, which may go on

    def push(self, text: str) -> str:
        """Return the whole words so far, wrapped, once `text` has come."""
        self._pending += text
        # The last word ends with white space, or with the text.
        whole = re.match(r"[\s\S]*\S(?=\s)|\n*", self._pending)
        end = whole.end() if whole is not None else 0
        ready, self._pending = self._pending[:end], self._pending[end:]
        return self._wrapped(ready)

    def finish(self) -> str:
        """Return the last word, wrapped."""
        rest, self._pending = self._pending, ""
        return self._wrapped(rest)

    def _wrapped(self, text: str) -> str:
        pieces = []
        end = 0
        for match in _PIECE.finditer(text):
            piece, end = match[0], match.end()
            visible = _COLOR.sub("", piece)
            if piece == "\n":
                self._column = 0
            elif self._column and self._column + len(visible) > self._width:
                piece = "\n" + piece.lstrip()
                self._column = len(visible.lstrip())
            else:
                self._column += len(visible)
            pieces.append(piece)
        self._column += len(text) - end
        return "".join(pieces) + text[end:]
