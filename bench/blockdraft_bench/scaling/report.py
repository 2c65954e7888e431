"""Predicted scaling on paper: what `scaling.json` holds, and its Markdown."""

from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.markdown import INTERVALS_NOTE, bullets, number, page, table
from blockdraft_bench.common.provenance import Report
from blockdraft_bench.common.statistics import Estimate
from blockdraft_bench.scaling.decay import DecayFit
from blockdraft_bench.scaling.lengths import PredictedLength
from blockdraft_bench.scaling.prediction import CurvePrediction
from blockdraft_bench.scaling.settings import PredictionSettings


@dataclass(frozen=True, slots=True)
class DrafterFingerprint:
    """Which drafter a file is of."""

    fingerprint: str


@dataclass(frozen=True, slots=True)
class FittedPosition:
    """One position of a block: verifications that reached it and accepted it, and the fit."""

    position: int
    reached: int
    accepted: int
    conditional_acceptance: float | None
    fitted: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted decay; see `DecayFit`.

    Attributes:
        acceptance: a, at the first position.
        decay: d, by which it changes from one position to the next.
        verifications: Those it was fitted on.
        deviance: How badly it fits.
        degrees_of_freedom: What the deviance would be about if the decay were geometric.
        largest_error_of_acceptance_length: Largest distance of fitted and measured τ.
        per_position: Along the block.
    """

    acceptance: Estimate
    decay: Estimate
    verifications: int
    deviance: float
    degrees_of_freedom: int
    largest_error_of_acceptance_length: float
    per_position: tuple[FittedPosition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingReport(PredictionSettings, Report):
    """Predicted τ and speed-up.

    Attributes:
        acceptance_file: What the decay was fitted on.
        measured_files: What it is compared with.
        kflat_file: Where the costs are from.
        drafter: The drafter of the fitted file.
        block_size: Its blocks, the anchor included.
        fit: The decay.
        acceptance_lengths: τ by rising block size.
        results: Speed-up by cost curve.
    """

    benchmark: Literal["scaling"] = "scaling"
    acceptance_file: str
    measured_files: tuple[str, ...]
    kflat_file: str
    drafter: DrafterFingerprint
    block_size: int
    fit: Fit
    acceptance_lengths: tuple[PredictedLength, ...]
    results: tuple[CurvePrediction, ...]


def summarize_fit(fit: DecayFit) -> Fit:
    """Return what a report says of a fit."""
    reached = fit.reached
    fitted = fit.decay.conditional(len(reached) - 1)
    return Fit(
        acceptance=fit.first,
        decay=fit.rate,
        verifications=reached[0],
        deviance=fit.deviance,
        degrees_of_freedom=fit.degrees_of_freedom,
        largest_error_of_acceptance_length=fit.largest_error,
        per_position=tuple(
            FittedPosition(k + 1, before, after, after / before if before else None, float(share))
            for k, (before, after, share) in enumerate(
                zip(reached[:-1], reached[1:], fitted, strict=True)
            )
        ),
    )


def markdown(report: ScalingReport) -> str:
    """Return the tables people read, with what they have to know about them."""
    fit, draft = report.fit, report.draft_seconds
    drafting = "drafting free (no --draft-seconds)" if draft is None else f"{1e3 * draft:g} ms"
    sizes = [f"K = {length.block_size}" for length in report.acceptance_lengths]
    return page(
        f"Fitted on {fit.verifications} verifications of blocks of {report.block_size} "
        f"({', '.join(report.datasets or ['all datasets'])}, temperature {report.temperature:g}): "
        f"acceptance a = {number(fit.acceptance, 3)} at the first position, times d = "
        f"{number(fit.decay, 3)} for each further one. Deviance {fit.deviance:.1f} on "
        f"{fit.degrees_of_freedom} degrees of freedom; τ is off by at most "
        f"{fit.largest_error_of_acceptance_length:.2f} up to there. {INTERVALS_NOTE}",
        table(
            ["K", "τ predicted", "τ measured"],
            (
                [
                    f"{length.block_size}{' (extrapolated)' if length.extrapolated else ''}",
                    length.acceptance_length,
                    "; ".join(
                        number(found.acceptance_length)
                        + (" (cut short)" if found.cut_short else "")
                        for found in length.measured
                    ),
                ]
                for length in report.acceptance_lengths
            ),
        ),
        f"Predicted speed-up over plain decoding, batch {report.batch}; draft {drafting}, "
        f"overhead {1e3 * report.overhead_seconds:g} ms a step.",
        table(
            ["Device", "Model", "Context", *sizes, "Best K"],
            (
                [
                    curve.marked_device,
                    curve.model,
                    curve.context_tokens,
                    *(number(row.speed_up, unit="x") for row in curve.predictions),
                    str(curve.best_block_size or "-"),
                ]
                for curve in report.results
            ),
        ),
        bullets(f"{curve.curve}: {curve.conclusion}" for curve in report.results),
    )
