"""`blockdraft bench scaling`: speed-up predicted from measured acceptance and costs."""

from dataclasses import replace

from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.scaling.settings import ScalingSettings
from blockdraft_runtime.configuration.command import Configuration

CONFIGURATION = Configuration("bench scaling", ScalingSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: ScalingSettings, run: Run) -> Outcome:
    """Fit the decay of acceptance, predict from it."""
    # Imported here: `--help` must not wait for numpy.
    from blockdraft_bench.common.provenance import origin
    from blockdraft_bench.scaling.decay import fit_decay
    from blockdraft_bench.scaling.figure import draw
    from blockdraft_bench.scaling.inputs import file_name, read_acceptance, read_cost_curves
    from blockdraft_bench.scaling.lengths import predict_lengths
    from blockdraft_bench.scaling.prediction import DraftCost, predict_speeds
    from blockdraft_bench.scaling.report import (
        DrafterFingerprint,
        ScalingReport,
        markdown,
        summarize_fit,
    )

    wanted = settings.prediction
    fitted, *others = (
        read_acceptance(path, wanted.temperature, wanted.datasets)
        for path in (settings.acceptance, *settings.measured)
    )
    curves = read_cost_curves(settings.kflat, wanted.batch)
    fit = fit_decay(fitted.counts, per_answer=fitted.per_answer, seed=wanted.seed)
    lengths = predict_lengths(fit, fitted, others, seed=wanted.seed)
    sizes = [length.block_size for length in lengths]
    cost = DraftCost(wanted.draft_seconds or 0.0, wanted.overhead_seconds)
    report = ScalingReport(
        **origin(run.commit),
        **vars(wanted),
        acceptance_file=fitted.source,
        measured_files=tuple(other.source for other in others),
        kflat_file=file_name(settings.kflat),
        target=fitted.target,
        drafter=DrafterFingerprint(fitted.drafter),
        block_size=fitted.block_size,
        fit=summarize_fit(fit),
        acceptance_lengths=lengths,
        results=tuple(
            predict_speeds(fit.decay, fitted.block_size, sizes, curve, cost) for curve in curves
        ),
    )
    run.identify(replace(report, command="", commit=None, versions={}))
    return Outcome(report, markdown(report), {"": draw(report)})
