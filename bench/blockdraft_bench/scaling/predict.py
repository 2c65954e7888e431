"""Predictions from a fitted decay, beside what was measured, for every cost curve."""

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft_bench.scaling.decay import DecayFit
from blockdraft_bench.scaling.inputs import ReachCounts
from blockdraft_bench.scaling.prediction import (
    CostCurve,
    DraftCost,
    Exchange,
    best_block_size,
    exchange,
    sizes_to_report,
    speed_up,
)


@dataclass(frozen=True, slots=True)
class MeasuredLength:
    """τ as measured.

    Attributes:
        source: The file.
        value: τ.
        ci95: Its interval, if the file has counts of several answers.
        cut_short: Whether from the beginnings of longer proposals.
    """

    source: str
    value: float
    ci95: tuple[float, float] | None
    cut_short: bool


@dataclass(frozen=True, slots=True)
class PredictedLength:
    """τ at one block size.

    Attributes:
        block_size: Tokens of the block, the anchor included.
        value: As predicted.
        ci95: Its interval, if there are counts of several answers.
        extrapolated: Whether past the block the decay was fitted on.
        measured: The same as measured, in the fitted file and others.
    """

    block_size: int
    value: float
    ci95: tuple[float, float] | None
    extrapolated: bool
    measured: tuple[MeasuredLength, ...]


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """Speed-up on one cost curve.

    Attributes:
        curve: The costs of verifying.
        speed_ups: Block size and speed-up; None past the curve's end.
        best_block_size: The power of two with the greatest speed-up; None if none is on the curve.
        exchange: Acceptance against block size, from the fitted file's block on.
    """

    curve: CostCurve
    speed_ups: tuple[tuple[int, float | None], ...]
    best_block_size: int | None
    exchange: Exchange


def predict_lengths(
    fit: DecayFit, fitted: ReachCounts, others: Sequence[ReachCounts], *, seed: int
) -> tuple[PredictedLength, ...]:
    """Return τ at 4, 8, 16, 32 and every measured block size.

    Args:
        fit: What was fitted.
        fitted: The counts it was fitted on.
        others: Measured with other block sizes.
        seed: Of the intervals.
    """
    sizes = sizes_to_report(fitted.block_size, [other.block_size for other in others])
    return tuple(
        PredictedLength(
            size,
            fit.decay.acceptance_length(size),
            fit.acceptance_length_interval(size),
            size > fitted.block_size,
            _measured(size, fitted, others, seed),
        )
        for size in sizes
    )


def predict_speeds(
    fit: DecayFit, block_size: int, sizes: Sequence[int], curve: CostCurve, cost: DraftCost
) -> PredictedSpeed:
    """Return the speed-up at `sizes` on one cost curve.

    Args:
        fit: The drafter.
        block_size: Where acceptance and block size are compared.
        sizes: Blocks to report.
        curve: What verifying costs.
        cost: What drafting costs.
    """
    return PredictedSpeed(
        curve,
        tuple((size, speed_up(fit.decay, size, curve, cost)) for size in sizes),
        best_block_size(fit.decay, curve, cost),
        exchange(fit.decay, block_size, curve, cost),
    )


def _measured(
    size: int, fitted: ReachCounts, others: Sequence[ReachCounts], seed: int
) -> tuple[MeasuredLength, ...]:
    """Return τ at one size: whole blocks of any file, and those of the fitted one cut short."""
    files = [fitted] if size <= fitted.block_size else []
    files += [other for other in others if other.block_size == size]
    return tuple(
        MeasuredLength(
            file.source,
            file.acceptance_length(size),
            file.acceptance_length_interval(size, seed),
            size < file.block_size,
        )
        for file in files
    )
