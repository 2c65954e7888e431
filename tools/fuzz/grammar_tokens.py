"""A small vocabulary whose tokens are bytes, and pieces of JSON that cross what grammars divide."""

from llguidance import LLTokenizer, TokenizerWrapper

_PIECES = (
    *('{"', '": ', '": "', '", "', '"}', "}, {", "[{", "]}", "}}", "null", "true", "false", "tru"),
    *(
        "e}",
        "  ",
        "\n\n",
        "00",
        "12",
        "-1",
        ".5",
        "ab",
        "abc",
        "bc",
        "xyz",
        " the",
        "ing",
        "é",
        "🦆",
    ),
    *("\\n", '\\"', "\\u00", "start", "</", "<c", "c>", "item", "name", "type", "id", "value"),
)


class _Vocabulary:
    """What llguidance asks of a tokenizer that is not Hugging Face's."""

    def __init__(self) -> None:
        pieces = [piece.encode() for piece in _PIECES]
        # The last byte of one character with the first of another.
        self.tokens = [*(bytes([byte]) for byte in range(256)), *pieces, b"\xa9\xc3", b"<|im_end|>"]
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]
        self._longest_first = sorted(range(self.eos_token_id), key=lambda id: -len(self.tokens[id]))

    def __call__(self, text: bytes) -> list[int]:
        ids: list[int] = []
        while text:
            ids.append(next(id for id in self._longest_first if text.startswith(self.tokens[id])))
            text = text[len(self.tokens[ids[-1]]) :]
        return ids


def tiny_tokenizer() -> LLTokenizer:
    """Return the tokenizer of this vocabulary; it takes the longest token at every place."""
    return LLTokenizer(TokenizerWrapper(_Vocabulary()))
