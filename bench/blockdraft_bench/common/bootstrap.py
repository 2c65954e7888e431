"""Percentile bootstrap: how much a ratio of sums would vary with other answers."""

import numpy as np
from jaxtyping import Float, Real

RESAMPLES = 2000
PERCENTILES = (2.5, 97.5)


def resampled_totals(
    counts: Real[np.ndarray, "answers columns"], seed: int, resamples: int = RESAMPLES
) -> Float[np.ndarray, "resamples columns"]:
    """Return column sums over answers drawn with replacement, as many as there are.

    Whole answers are drawn, not verifications: those of one answer resemble each other, and
    drawing them one by one would make the intervals too narrow.

    Args:
        counts: Counts of each answer, or its times.
        seed: Of the draws.
        resamples: How many sums.
    """
    answers = counts.shape[0]
    # How often each answer is drawn, instead of which one each draw gives: one matrix product.
    rng = np.random.default_rng(seed)
    times = rng.multinomial(answers, np.full(answers, 1.0 / answers), size=resamples)
    return times.astype(np.float64) @ counts.astype(np.float64)


def percentile_interval(values: Float[np.ndarray, " resamples"]) -> tuple[float, float] | None:
    """Return the 95 % interval of resampled values, or None if none of them is defined.

    Args:
        values: NaN where a resample had nothing to divide by.
    """
    defined = values[np.isfinite(values)]
    if not defined.size:
        return None
    low, high = np.percentile(defined, PERCENTILES)
    return float(low), float(high)
