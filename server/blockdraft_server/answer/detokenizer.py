"""Incremental text of a token stream: whole characters only, cut before a stop sequence.

Whatever the chunking, the text is the one that the whole token sequence has. Where several stop
sequences occur, the one that is *completed* first ends the text; of two that are completed by
the same character, the longer one. So the decision never waits for later characters.
"""

import codecs
from collections.abc import Callable, Sequence


class StopMatcher:
    """Finds the first completed occurrence of any of some sequences, character by character.

    Knuth-Morris-Pratt, one automaton per sequence: constant work per character and sequence, so
    that no choice of stop sequences can make a request expensive.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        """Build the automata of `sequences`, none of which may be empty."""
        if not all(sequences):
            raise ValueError("a stop sequence must not be empty")
        self._sequences = tuple(sequences)
        self._fallbacks = tuple(_fallbacks(sequence) for sequence in sequences)
        self._matched = [0] * len(sequences)

    @property
    def longest_prefix(self) -> int:
        """Length of the longest end of the text so far that may begin a stop sequence."""
        return max(self._matched, default=0)

    def push(self, character: str) -> int | None:
        """Read one character; return the length of the sequence it completes, if any."""
        completed = None
        for index, sequence in enumerate(self._sequences):
            length = self._matched[index]
            while length > 0 and sequence[length] != character:
                length = self._fallbacks[index][length - 1]
            if sequence[length] == character:
                length += 1
            if length == len(sequence):
                completed = max(completed or 0, length)
                length = self._fallbacks[index][length - 1]
            self._matched[index] = length
        return completed


class Detokenizer:
    """Turns the tokens of one answer into text as they arrive.

    Attributes:
        tokens: How many of the tokens are part of the answer: all up to the one that completed a
            stop sequence.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], stop_sequences: Sequence[str] = ()
    ) -> None:
        """Start an empty answer.

        Args:
            token_bytes: Returns the bytes of a token; they need not be whole characters.
            stop_sequences: Texts that end the answer; none empty.
        """
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matcher = StopMatcher(stop_sequences) if stop_sequences else None
        self._held = ""
        self._stopped = False
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop sequence was found; no further text comes."""
        return self._stopped

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the new text that is certain after `token_ids`.

        Incomplete characters and any end that may begin a stop sequence are held back.
        """
        if self._matcher is None:
            self.tokens += len(token_ids)
            return self._decoder.decode(b"".join(map(self._token_bytes, token_ids)))
        texts = []
        # One by one: how many tokens came together must not decide where the answer ends.
        for token_id in token_ids:
            if self._stopped:
                break
            self.tokens += 1
            texts.append(self._release(self._decoder.decode(self._token_bytes(token_id))))
        return "".join(texts)

    def finish(self) -> str:
        """Return what was held back; the token stream has ended."""
        if self._stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        if not self._stopped:
            text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if self._matcher is None:
            return text
        pending = self._held + text
        for position, character in enumerate(text, start=len(self._held) + 1):
            length = self._matcher.push(character)
            if length is not None:
                self._stopped = True
                self._held = ""
                return pending[: position - length]
        boundary = len(pending) - self._matcher.longest_prefix
        self._held = pending[boundary:]
        return pending[:boundary]


def _fallbacks(sequence: str) -> tuple[int, ...]:
    """Return for each prefix of `sequence` its longest proper prefix that is also its end."""
    fallbacks = [0] * len(sequence)
    length = 0
    for index in range(1, len(sequence)):
        while length > 0 and sequence[index] != sequence[length]:
            length = fallbacks[length - 1]
        if sequence[index] == sequence[length]:
            length += 1
        fallbacks[index] = length
    return tuple(fallbacks)
