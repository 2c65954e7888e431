"""Numbers with their confidence intervals: percentile bootstrap over completions, and means.

Everything measured here is a ratio of sums over completions, or a ratio of such ratios. How much it
would vary with other completions is seen by drawing the completions again, with replacement: whole
completions and not verifications, because those of one completion resemble each other, and drawing
them one by one would make the intervals too narrow.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Num

RESAMPLES = 2000
# Fewer completions tell too little of others for an interval.
LEAST_COMPLETIONS = 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured number."""

    value: float | None  # the number; None if nothing measured it
    # Its 95 % interval; None with fewer than `LEAST_COMPLETIONS`, whoever computed it.
    ci95: tuple[float, float] | None
    completions: int  # number of those that would define it by themselves

    def __post_init__(self) -> None:
        """Drop an interval that rests on too few completions."""
        if self.completions < LEAST_COMPLETIONS:
            object.__setattr__(self, "ci95", None)


def bootstrap(
    groups: Iterable[Num[np.ndarray, "_ columns"]],
    seed: int,
    mean_of: Callable[[Float[np.ndarray, "groups any"]], Float[np.ndarray, " any"]] = (
        lambda ratios: ratios.mean(0)
    ),
) -> Estimate:
    """Estimate the mean over groups of completions of a ratio that each group defines.

    A row is a completion: numerator and denominator, and those of the ratio to divide by, if any. A
    group that defines none is left out. The completions of each group are drawn again by
    themselves, so the interval says how the mean would vary with other completions of the same
    groups. It is a little too narrow where these are small.
    """
    values, draws, completions = [], [], 0
    for index, counts in enumerate(groups):
        rows = counts.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = _ratio(rows.sum(axis=0, keepdims=True))
            if np.isfinite(value).all():
                values.append(value)
                draws.append(_ratio(resampled_totals(rows, seed + index)))
                completions += int(np.isfinite(_ratio(rows)).sum())
    if not values:
        return Estimate(None, None, 0)
    [value] = mean_of(np.stack(values))
    return estimate(float(value), mean_of(np.stack(draws)), completions)


def _ratio(totals: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, " rows"]:
    ratios = totals[:, 0::2] / totals[:, 1::2]
    return np.asarray(ratios[:, 0] / ratios[:, 1:].prod(axis=1))


def estimate(value: float, drawn: Float[np.ndarray, " resamples"], completions: int) -> Estimate:
    """Return a number with the interval of its resampled values; None for a value not finite."""
    defined = drawn[np.isfinite(drawn)]
    interval = None
    if defined.size:
        low, high = percentiles(defined, (2.5, 97.5))
        interval = low, high
    return Estimate(value if np.isfinite(value) else None, interval, completions)


def resampled_totals(
    counts: Num[np.ndarray, "completions columns"], seed: int
) -> Float[np.ndarray, "resamples columns"]:
    """Return column sums over completions drawn with replacement, as many as there are."""
    completions = counts.shape[0]
    # How often each completion is drawn, instead of which one each draw gives: one matrix product.
    rng = np.random.default_rng(seed)
    times = rng.multinomial(completions, np.full(completions, 1.0 / completions), size=RESAMPLES)
    return times.astype(np.float64) @ counts.astype(np.float64)


def percentiles(
    values: Sequence[float] | Float[np.ndarray, " values"], percents: Sequence[int | float]
) -> tuple[float, ...]:
    """Return percentiles of at least one value, linear between neighbours."""
    points = np.percentile(values, percents)
    return tuple(float(point) for point in points)


def quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the first and the third quartile; None of nothing."""
    if not values:
        return None
    first, third = percentiles(values, (25, 75))
    return first, third


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return float(statistics.median(numbers)) if numbers else None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the arithmetic mean of the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if numbers else None


def identical_share(pairs: Iterable[tuple[object, object]]) -> float:
    """Return the share of at least one pair whose two sides are equal."""
    return statistics.fmean(left == right for left, right in pairs)
