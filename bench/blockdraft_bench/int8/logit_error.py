"""How far the logits of one model are from those of another, position by position; no I/O."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, slots=True)
class LogitError:
    """Sums over positions, so that those of several answers can be added.

    Attributes:
        answers: How many.
        positions: Tokens of these.
        squared_error: Of all logits of all positions.
        squared_reference: Of the reference's logits.
        max_error: Largest absolute error of a logit.
        same_choices: Positions at which both models have the same largest logit.
        kl_nats: Kullback-Leibler divergence of the other's distribution from the reference's.
    """

    answers: int = 0
    positions: int = 0
    squared_error: float = 0.0
    squared_reference: float = 0.0
    max_error: float = 0.0
    same_choices: int = 0
    kl_nats: float = 0.0

    def plus(self, other: "LogitError") -> "LogitError":
        """Return the error over the positions of both."""
        return LogitError(
            self.answers + other.answers,
            self.positions + other.positions,
            self.squared_error + other.squared_error,
            self.squared_reference + other.squared_reference,
            max(self.max_error, other.max_error),
            self.same_choices + other.same_choices,
            self.kl_nats + other.kl_nats,
        )

    @property
    def relative_rms(self) -> float:
        """Root mean square of the error over that of the reference."""
        return math.sqrt(self.squared_error / self.squared_reference)

    @property
    def same_choice_share(self) -> float:
        """Share of positions at which greedy decoding chooses the same token."""
        return self.same_choices / self.positions

    @property
    def mean_kl_nats(self) -> float:
        """Mean divergence of a position."""
        return self.kl_nats / self.positions


def logit_error(
    reference: Float[np.ndarray, "positions vocab"], other: Float[np.ndarray, "positions vocab"]
) -> LogitError:
    """Compare the logits of two models at the positions of one answer, in float64.

    Args:
        reference: What is taken for right.
        other: What is compared with it.
    """
    wanted, found = reference.astype(np.float64), other.astype(np.float64)
    error = found - wanted
    log_p, log_q = _log_softmax(wanted), _log_softmax(found)
    return LogitError(
        answers=1,
        positions=len(wanted),
        squared_error=float(np.sum(error**2)),
        squared_reference=float(np.sum(wanted**2)),
        max_error=float(np.max(np.abs(error), initial=0.0)),
        same_choices=int(np.sum(wanted.argmax(axis=1) == found.argmax(axis=1))),
        kl_nats=float(np.sum(np.exp(log_p) * (log_p - log_q))),
    )


def _log_softmax(logits: Float[np.ndarray, "positions vocab"]) -> np.ndarray:
    centered = logits - logits.max(axis=1, keepdims=True)
    log_softmax: np.ndarray = centered - np.log(np.sum(np.exp(centered), axis=1, keepdims=True))
    return log_softmax
