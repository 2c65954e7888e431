"""A process that compiles grammars, follows each through random tokens, and says how it went.

It reads lines `{"text": ..., "seed": ...}`, and writes two for each: one when it begins, and one
with how it ended and the longest processor time of each operation. So whoever started it knows
which grammar it was that made it crash or hang.
"""

import functools
import json
import random
import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from tools.fuzz.grammar_tokens import tiny_tokenizer

from blockdraft_bench.schemas.grammar import GrammarRefusedError, compiled, tokenizer_of
from blockdraft_runtime.status import ServiceError
from blockdraft_verifier.grammars.trial import GrammarTrial

_MOST_TOKENS = 24
_LONGEST_DRAFT = 7
_LIMIT = re.compile("too many|max is|limit", re.I)


class Timed:
    """Measures operations; keeps the longest processor time of each, in seconds."""

    def __init__(self) -> None:
        """Begin."""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, operation: str) -> Iterator[None]:
        """Measure what is in the `with` block."""
        began = time.process_time()
        yield
        took = time.process_time() - began
        self.seconds[operation] = max(took, self.seconds.get(operation, 0.0))


class Walk:
    """Follows a grammar, and checks that what is said of the next token does not depend on how."""

    def __init__(self, start: LLMatcher, tokenizer: LLTokenizer, seed: int, timed: Timed) -> None:
        """Begin where `start` is, which stays there."""
        self._start, self._tokenizer, self._timed = start, tokenizer, timed
        self._draw = random.Random(seed)
        self._executor = LLExecutor(1)
        self._words = -(-tokenizer.vocab_size // 32)  # of 32 bits, in a mask
        self._output: list[int] = []

    def run(self) -> str:
        """Return how it ended; beginning with "BAD" if it must not end so."""
        with self._timed("copy"):
            matcher = self._start.deep_copy()
        # Consumes the same tokens, and is asked nothing else.
        plain = self._start.deep_copy()
        expected: bytes | None = None
        while len(self._output) < _MOST_TOKENS and not matcher.is_stopped():
            with self._timed("mask"):
                mask = matcher.compute_bitmask()[: 4 * self._words]
            if matcher.is_error():
                return "gave up"
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits)
            if expected is not None and mask != expected:
                return "BAD another mask after a draft"
            if not len(allowed):
                return "BAD nothing may follow"
            draft = self._draft(matcher, allowed)
            if draft[0] == self._tokenizer.eos_token:
                # The output ends, even where a grammar names this token in its midst.
                break
            rows = self._masks(matcher, draft)
            if matcher.is_error():
                return "gave up on a draft"
            if rows[0] != mask:
                return "BAD another mask before a draft"
            with self._timed("consume"):
                consumed = matcher.consume_token(draft[0])
            if not consumed:
                told = matcher.get_error()
                return "gave up on a token" if _LIMIT.search(told) else f"BAD {told[:300]}"
            self._output.append(draft[0])
            expected = rows[1]
            if not plain.consume_token(draft[0]) or plain.is_stopped() != matcher.is_stopped():
                return "BAD it ends elsewhere when only tokens are consumed"
        return self._rolled_back(matcher)

    def _draft(self, matcher: LLMatcher, allowed: Any) -> list[int]:
        """Return an allowed token, often a forced one, and some that may be wrong."""
        with self._timed("forced"):
            forced = matcher.compute_ff_tokens()
        first = forced[:1] if forced and self._draw.random() < 0.7 else []
        if first and first[0] not in allowed:
            return [int(self._draw.choice(allowed))]
        draft = first or [int(self._draw.choice(allowed))]
        more = self._draw.randrange(_LONGEST_DRAFT)
        return draft + [self._draw.randrange(self._tokenizer.vocab_size) for _ in range(more)]

    def _masks(self, matcher: LLMatcher, draft: list[int]) -> list[bytes]:
        rows = np.zeros((len(draft) + 1, self._words), np.int32)
        with self._timed("draft"):
            self._executor.unsafe_compute_mask_ptr_with_draft_token(
                [(matcher, 0, draft)], rows.ctypes.data, 4 * self._words, len(rows)
            )
        return [row.tobytes() for row in rows]

    def _rolled_back(self, matcher: LLMatcher) -> str:
        with self._timed("roll back"):
            matcher.rollback(len(self._output))
        if matcher.is_error():
            return "gave up rolling back"
        if matcher.compute_bitmask() != self._start.deep_copy().compute_bitmask():
            return "BAD another mask after rolling back"
        return "followed"


def main() -> None:
    """Serve standard input."""
    make = tiny_tokenizer if len(sys.argv) < 2 else functools.partial(tokenizer_of, sys.argv[1])
    tokenizer, trial = make(), GrammarTrial(make)
    for line in sys.stdin:
        asked = json.loads(line)
        print("begin", flush=True)
        timed = Timed()
        try:
            # As a verifier does.
            trial(asked["text"])
            with timed("compile"):
                matcher = compiled(asked["text"], tokenizer)
            ending = Walk(matcher, tokenizer, asked["seed"], timed).run()
        except (ServiceError, GrammarRefusedError) as error:
            ending = "refused" if str(error).strip() else "BAD refused without a message"
        # What the binding raises on panic is no Exception.
        except BaseException as error:
            ending = f"BAD {type(error).__name__}: {str(error)[:300]}"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"ending": ending, "seconds": timed.seconds, "mib": peak}), flush=True)


if __name__ == "__main__":
    main()
