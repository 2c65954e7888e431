"""What is expected of steps in which 0, 1, 2, ... tokens are asked for; no I/O, no clock."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from blockdraft_verifier.engine.acceptance import (
    AcceptanceEstimate,
    ExpectedDrafts,
    expected_drafts,
)

# What is lost to rounding in sums of probabilities.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ExpectedSteps:
    """Steps by how many tokens are asked for of each sequence.

    Attributes:
        tokens: Tokens verified of all sequences.
        gains: Tokens gained.
        verify_seconds: What verification takes.
        draft_seconds: What drafting took before.
    """

    tokens: Float[np.ndarray, " lengths"]
    gains: Float[np.ndarray, " lengths"]
    verify_seconds: Float[np.ndarray, " lengths"]
    draft_seconds: Float[np.ndarray, " lengths"]

    @property
    def seconds(self) -> Float[np.ndarray, " lengths"]:
        """What steps take."""
        seconds: Float[np.ndarray, " lengths"] = self.verify_seconds + self.draft_seconds
        return seconds


def expected_steps(
    estimates: Sequence[AcceptanceEstimate],
    most: int,
    sizes: Collection[int],
    verify_seconds: Callable[[int, int], float],
    draft_seconds: Callable[[int, float], float],
) -> ExpectedSteps:
    """Return what is expected of steps with drafts of 0, 1, ... `most` tokens.

    Args:
        estimates: The acceptance estimate of each sequence of the batch; at least one.
        most: Most tokens the drafter can draft.
        sizes: Tokens of every compiled step that holds these sequences.
        verify_seconds: Seconds of a step by sequences and tokens.
        draft_seconds: Seconds of drafts by sequences and tokens of the longest.
    """
    rows, drafts = len(estimates), expected_drafts(estimates, most)
    return ExpectedSteps(
        rows + drafts.drafted,
        rows + drafts.accepted,
        _verified(rows, drafts, sizes, verify_seconds),
        np.array([draft_seconds(rows, float(passes)) for passes in drafts.passes], np.float64),
    )


def _verified(
    rows: int,
    drafts: ExpectedDrafts,
    sizes: Collection[int],
    verify_seconds: Callable[[int, int], float],
) -> Float[np.ndarray, " lengths"]:
    """Return the seconds of verifying drafts of 0, 1, ... tokens.

    Drafts that end early are verified in smaller steps, so what a step takes is averaged over the
    compiled sizes that it may need. Those that need several steps have as many tokens as expected.
    """
    by_size = [(size, verify_seconds(rows, size)) for size in sorted(sizes)]
    seconds = np.zeros(len(drafts.drafted))
    for length, variance in enumerate(drafts.variance):
        longest = rows * (1 + length)
        if variance < ROUNDING or longest > max(sizes):
            tokens = math.ceil(rows + float(drafts.drafted[length]) - ROUNDING)
            seconds[length] = verify_seconds(rows, tokens)
            continue
        smaller = 0.0
        for size, took in by_size:
            fits = _fits(rows, drafts, length, size) if size < longest else 1.0
            seconds[length] += (fits - smaller) * took
            smaller = fits
            if size >= longest:
                break
    return seconds


def _fits(rows: int, drafts: ExpectedDrafts, length: int, size: int) -> float:
    """Return how likely a step has at most `size` tokens.

    The drafts of several sequences have together a normally distributed number of tokens.
    """
    if rows == 1:
        return 1.0 - float(drafts.drafted[size] - drafts.drafted[size - 1])
    beyond = size + 0.5 - rows - float(drafts.drafted[length])
    return 0.5 * (1.0 + math.erf(beyond / math.sqrt(2.0 * float(drafts.variance[length]))))
