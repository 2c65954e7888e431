"""Acceptance along a block as two numbers: a at the first position, times d for each further one.

The drafted token at position k is right, given that all before it were, with probability

    a_k = a * d ** (k - 1), never more than 1.

A block of K tokens, its anchor included, holds K - 1 drafted ones, so a verification gains

    tau(K) = 1 + sum over k = 1 ... K - 1 of a_1 * ... * a_k.

Of n_k verifications that accepted all tokens before position k, s_k accepted that one too: s_k is
binomial. a and d maximize the likelihood of all s_k. In log a and log d that is a regression with
binomial errors and logarithmic link, whose log-likelihood is concave; its variables here are the
log probabilities at the first and the last position, because "at most 1" bounds just these two.
Bisection of its slopes, one variable within the other, finds the maximum of many resamples at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Num

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.statistics import RESAMPLES, Estimate, estimate, resampled_totals

# Log probabilities: at the first position from one in a million, at the last from that to the
# power of the positions, both to just below 1, where the logarithm of the rest is still finite.
LEAST, MOST = float(np.log(1e-6)), -1e-9
BISECTIONS = 30


@dataclass(frozen=True, slots=True)
class Decay:
    """How often drafts are right.

    Attributes:
        first: a, acceptance of the first drafted token.
        rate: d, by which acceptance given all before changes from one position to the next.
    """

    first: float
    rate: float

    def conditional(self, count: int) -> Float[np.ndarray, " positions"]:
        """Return acceptance given all before, at the first `count` positions."""
        shares: Float[np.ndarray, " positions"] = self.rate ** np.arange(count, dtype=np.float64)
        return np.minimum(1.0, self.first * shares)

    def acceptance_length(self, block_size: int) -> float:
        """Return τ of blocks of `block_size` tokens, the anchor included."""
        return 1.0 + float(np.cumprod(self.conditional(block_size - 1)).sum())


@dataclass(frozen=True, slots=True)
class DecayFit:
    """What was fitted, and how well it fits.

    Attributes:
        decay: The likeliest values.
        answers: Answers they rest on; None without counts per answer.
        resamples: The likeliest values of bootstrap resamples of the answers.
        reached: Verifications that accepted at least 0, 1, ... K tokens.
        deviance: Twice the log-likelihood lost against one probability for each position. Near
            `degrees_of_freedom` if the decay is geometric and verifications are independent.
    """

    decay: Decay
    answers: int | None
    resamples: tuple[Decay, ...]
    reached: tuple[int, ...]
    deviance: float

    @property
    def degrees_of_freedom(self) -> int:
        """Positions that were put to the test, less the two numbers fitted."""
        return sum(count > 0 for count in self.reached[:-1]) - 2

    @property
    def largest_error(self) -> float:
        """Largest distance of fitted and measured τ of blocks up to the drafted length."""
        reached = np.array(self.reached, np.float64)
        measured = 1.0 + np.cumsum(reached[1:] / reached[0])
        fitted = [self.decay.acceptance_length(k) for k in range(2, len(reached) + 1)]
        return float(np.abs(measured - fitted).max())

    @property
    def first(self) -> Estimate:
        """How well a is known."""
        return self._estimate(lambda decay: decay.first)

    @property
    def rate(self) -> Estimate:
        """How well d is known."""
        return self._estimate(lambda decay: decay.rate)

    def acceptance_length(self, block_size: int) -> Estimate:
        """Return the predicted τ of blocks of `block_size` tokens."""
        return self._estimate(lambda decay: decay.acceptance_length(block_size))

    def _estimate(self, number: Callable[[Decay], float]) -> Estimate:
        drawn = np.array([number(decay) for decay in self.resamples], np.float64)
        return estimate(number(self.decay), drawn, self.answers)


def fit_decay(
    counts: Num[np.ndarray, "rows reach"],
    *,
    per_answer: bool,
    seed: int,
    resamples: int = RESAMPLES,
) -> DecayFit:
    """Fit a and d.

    Args:
        counts: Verifications that accepted at least 0, 1, ... K tokens, K at least 2.
        per_answer: Whether each row is one answer, and the rows so can be resampled.
        seed: Of the resampling.
        resamples: How many.

    Raises:
        BenchUsageError: If the counts say nothing of a decay.
    """
    totals = counts.sum(axis=0).astype(np.float64)
    if len(totals) < 3:
        raise BenchUsageError("a decay needs drafts of at least two tokens")
    if not totals[1]:
        raise BenchUsageError("no first drafted token was accepted; there is no decay to fit")
    resampled: tuple[Decay, ...] = ()
    if per_answer:
        drawn = resampled_totals(counts, seed, resamples)
        resampled = _likeliest(drawn[drawn[:, 1] > 0])
    [decay] = _likeliest(totals[None])
    return DecayFit(
        decay,
        len(counts) if per_answer else None,
        resampled,
        tuple(int(total) for total in totals),
        _deviance(totals, decay),
    )


def _likeliest(totals: Float[np.ndarray, "resamples reach"]) -> tuple[Decay, ...]:
    """Return the decay of greatest likelihood of each resample."""
    right = totals[:, 1:]
    wrong = totals[:, :-1] - right
    # The log probability at each position lies between those at the ends.
    from_last = np.linspace(0.0, 1.0, right.shape[1])
    from_first = 1.0 - from_last

    def slope(
        first: Float[np.ndarray, " resamples"],
        last: Float[np.ndarray, " resamples"],
        share: Float[np.ndarray, " positions"],
    ) -> Float[np.ndarray, " resamples"]:
        """Return the slope of the log-likelihood in the end that moves positions by `share`."""
        log_p = first[:, None] * from_first + last[:, None] * from_last
        odds = np.exp(log_p) / -np.expm1(log_p)
        changed: Float[np.ndarray, " resamples"] = (right - wrong * odds) @ share
        return changed

    def best_first(last: Float[np.ndarray, " resamples"]) -> Float[np.ndarray, " resamples"]:
        return _bisect(lambda first: slope(first, last, from_first) > 0.0, LEAST, len(last))

    # At the best first end the other one alone decides: the slope there is the profile's.
    last = _bisect(
        lambda last: slope(best_first(last), last, from_last) > 0.0,
        LEAST * right.shape[1],
        len(totals),
    )
    first = best_first(last)
    rates = np.exp((last - first) / (right.shape[1] - 1))
    return tuple(Decay(float(a), float(d)) for a, d in zip(np.exp(first), rates, strict=True))


def _bisect(
    too_small: Callable[[Float[np.ndarray, " resamples"]], Bool[np.ndarray, " resamples"]],
    least: float,
    count: int,
) -> Float[np.ndarray, " resamples"]:
    """Return where `too_small` ends for each of `count` resamples, between `least` and `MOST`."""
    low, high = np.full(count, least), np.full(count, MOST)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        rising = too_small(middle)
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    found: Float[np.ndarray, " resamples"] = (low + high) / 2
    return found


def _deviance(totals: Float[np.ndarray, " reach"], decay: Decay) -> float:
    reached, right = totals[:-1], totals[1:]
    wrong = reached - right
    fitted = np.clip(decay.conditional(len(right)), 1e-12, 1.0 - 1e-12)
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 * log(0) is 0
        terms = [
            np.where(right > 0, right * np.log(right / (reached * fitted)), 0.0),
            np.where(wrong > 0, wrong * np.log(wrong / (reached * (1.0 - fitted))), 0.0),
        ]
    return 2.0 * float(np.sum(terms))
