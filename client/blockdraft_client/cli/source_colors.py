"""Tokens in the colours of their sources."""

import codecs

from blockdraft_client.results import Chunk, TokenSource
from blockdraft_runtime.terminal import colored

# Those of the playground, by ANSI's numbers.
COLORS = {TokenSource.DRAFTER: 32, TokenSource.PROMPT_LOOKUP: 34, TokenSource.GRAMMAR: 33}


def in_colors(chunk: Chunk) -> str:
    """Return the text of a chunk, with the colours of its tokens where they amount to it.

    Stop sequences and incomplete characters are held back, and control tokens are no text.
    """
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    texts = [decode(item.chosen.token) for item in chunk.log_probs]
    if "".join(texts) != chunk.text or len(texts) != len(chunk.token_sources):
        return chunk.text
    colors = map(COLORS.get, chunk.token_sources)
    pairs = zip(texts, colors, strict=True)
    return "".join(colored(text, color) if color else text for text, color in pairs)
