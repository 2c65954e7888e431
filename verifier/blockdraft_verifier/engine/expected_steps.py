"""What is expected of steps in which 0, 1, 2, ... tokens are asked for; no I/O, no clock."""

from collections.abc import Callable, Sequence
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
    verify_seconds: Callable[[int, int], float],
    draft_seconds: Callable[[int, float], float],
) -> ExpectedSteps:
    """Return what is expected of steps with drafts of 0, 1, ... `most` tokens."""
    rows, drafts = len(estimates), expected_drafts(estimates, most)
    tokens = rows + drafts.drafted
    if rows == 1:
        verified = _verified_alone(drafts, verify_seconds)
    else:
        # The drafts of several sequences have together about as many tokens as expected.
        sizes = np.ceil(tokens - ROUNDING).astype(int)
        verified = np.array([verify_seconds(rows, size) for size in sizes.tolist()])
    drafted = np.array([draft_seconds(rows, passes) for passes in drafts.passes.tolist()])
    return ExpectedSteps(tokens, rows + drafts.accepted, verified, drafted)


def _verified_alone(
    drafts: ExpectedDrafts, verify_seconds: Callable[[int, int], float]
) -> Float[np.ndarray, " lengths"]:
    """Return the seconds of verifying a lone sequence's drafts of 0, 1, ... tokens.

    A draft that ends early is verified in a smaller step: a token takes what it makes the step
    longer, as often as there is one.
    """
    took = np.array([verify_seconds(1, 1 + length) for length in range(len(drafts.drafted))])
    longer = np.diff(drafts.drafted) * np.diff(took)
    return np.concatenate([took[:1], took[0] + np.cumsum(longer)])
