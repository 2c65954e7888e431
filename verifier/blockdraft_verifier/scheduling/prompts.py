"""How many tokens of prompts a step computes."""

from collections.abc import Callable

PromptRoom = Callable[[int, int, int], int | None]
"""Prompt tokens beside so many rows and tokens, at a context so long; None for all that fit."""


def prefill_chunk(remaining: int, used: int, budget: int) -> int:
    """Return how many of `remaining` prompt tokens to run beside `used` others.

    Steps are padded to powers of two. Running everything is worth it while at most a quarter is
    padding; otherwise the chunk fills the next smaller power of two exactly.

    >>> prefill_chunk(100, 0, 256), prefill_chunk(130, 0, 256), prefill_chunk(300, 0, 256)
    (100, 128, 256)
    """
    count = min(remaining, budget)
    total = used + count
    bucket = 1 << (total - 1).bit_length()
    smaller = bucket // 2
    if 4 * total >= 3 * bucket or smaller <= used:
        return count
    return smaller - used
