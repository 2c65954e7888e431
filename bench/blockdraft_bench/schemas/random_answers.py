"""Completions made of random tokens that a grammar allows, and the time that its masks take."""

import random
import time
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int
from llguidance import LLExecutor, LLMatcher, LLTokenizer

# How often a token that closes something is preferred, so that completions come to an end.
CLOSING = 0.4
_CLOSERS = (b'"', b"]", b"}")


@dataclass(frozen=True, slots=True)
class SchemaAnswer:
    """An answer to a schema: a completion, of a model or of random tokens."""

    text: str
    ended: bool  # of itself, not at the most tokens
    tokens: int
    forced_tokens: int  # how many of them left no choice


@dataclass(frozen=True, slots=True)
class MaskTimes:
    """Seconds of each computation along one completion."""

    single: tuple[float, ...]  # the mask of one token
    drafts: tuple[float, ...]  # the masks of a whole draft, one more than it has tokens


class RandomAnswers:
    """Answers in the tokens of a vocabulary; the same seed gives the same answers."""

    def __init__(
        self, tokenizer: LLTokenizer, max_tokens: int, draft_length: int, seed: int
    ) -> None:
        """Answer with so many tokens at most; time masks along drafts of so many tokens."""
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._draft_length = draft_length
        self._draw = random.Random(seed)
        self._executor = LLExecutor(1)
        texts = [tokenizer.decode_bytes([token]) for token in range(tokenizer.vocab_size)]
        self._closing = np.array([text.startswith(_CLOSERS) for text in texts])

    def __call__(self, start: LLMatcher) -> tuple[SchemaAnswer, MaskTimes]:
        """Follow a grammar from its beginning, where `start` stays."""
        matcher = start.deep_copy()
        output: list[int] = []
        single: list[float] = []
        forced = 0
        while len(output) < self._max_tokens and not matcher.is_stopped():
            began = time.perf_counter()
            mask = matcher.compute_bitmask()
            single.append(time.perf_counter() - began)
            must = matcher.compute_ff_tokens()[:1]
            forced += len(must)
            token = must[0] if must else self._choose(_unpacked(mask, self._closing.size))
            if matcher.is_error() or not matcher.consume_token(token):
                break
            output.append(token)
        ended = matcher.is_stopped() and not matcher.is_error()
        text_tokens = [token for token in output if token not in self._tokenizer.eos_tokens]
        answer = SchemaAnswer(self._tokenizer.decode_str(text_tokens), ended, len(output), forced)
        return answer, MaskTimes(tuple(single), self._drafted(start.deep_copy(), output))

    def _choose(self, allowed: Bool[np.ndarray, " vocabulary"]) -> int:
        ends = [token for token in self._tokenizer.eos_tokens if allowed[token]]
        if ends and self._draw.random() < CLOSING:
            return ends[0]
        closing = np.flatnonzero(allowed & self._closing)
        tokens = np.flatnonzero(allowed)
        candidates = closing if closing.size and self._draw.random() < CLOSING else tokens
        return int(candidates[self._draw.randrange(candidates.size)])

    def _drafted(self, matcher: LLMatcher, output: list[int]) -> tuple[float, ...]:
        """Time the masks of drafts that turn out right, one after another."""
        width = -(-self._closing.size // 32)
        rows: Int[np.ndarray, "positions words"]
        rows = np.zeros((self._draft_length + 1, width), np.int32)
        seconds = []
        for at in range(0, len(output) - self._draft_length + 1, self._draft_length):
            draft = output[at : at + self._draft_length]
            began = time.perf_counter()
            self._executor.unsafe_compute_mask_ptr_with_draft_token(
                [(matcher, 0, draft)], rows.ctypes.data, 4 * width, len(rows)
            )
            seconds.append(time.perf_counter() - began)
            if not matcher.consume_tokens(draft):
                break
        return tuple(seconds)


def _unpacked(mask: bytes, size: int) -> Bool[np.ndarray, " vocabulary"]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return bits[:size].astype(bool)
