"""Acceptance length by block size: predicted from a fitted decay, beside what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft_bench.common.statistics import Estimate
from blockdraft_bench.scaling.decay import DecayFit
from blockdraft_bench.scaling.inputs import ReachCounts


@dataclass(frozen=True, slots=True)
class MeasuredLength:
    """τ as measured in one file; `cut_short` if from the beginnings of longer proposals."""

    source: str
    acceptance_length: Estimate
    cut_short: bool


@dataclass(frozen=True, slots=True)
class PredictedLength:
    """τ at one block size.

    Attributes:
        block_size: Tokens of the block, the anchor included.
        acceptance_length: As predicted.
        extrapolated: Whether past the block the decay was fitted on.
        measured: The same as measured, in the fitted file and others.
    """

    block_size: int
    acceptance_length: Estimate
    extrapolated: bool
    measured: tuple[MeasuredLength, ...]


def predict_lengths(
    fit: DecayFit, fitted: ReachCounts, others: Sequence[ReachCounts], *, seed: int
) -> tuple[PredictedLength, ...]:
    """Return τ at 4, 8, 16, 32 and every measured block size."""
    sizes = sorted({4, 8, 16, 32, fitted.block_size, *(other.block_size for other in others)})
    lengths = []
    for size in sizes:
        # Whole blocks of any file, and those of the fitted one cut short.
        files = [fitted] if size <= fitted.block_size else []
        files += [other for other in others if other.block_size == size]
        measured = tuple(
            MeasuredLength(file.source, file.acceptance_length(size, seed), size < file.block_size)
            for file in files
        )
        predicted = fit.acceptance_length(size)
        lengths.append(PredictedLength(size, predicted, size > fitted.block_size, measured))
    return tuple(lengths)
