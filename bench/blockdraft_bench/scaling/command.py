"""`blockdraft bench scaling`: speed-up predicted from measured acceptance and costs."""

import argparse
from dataclasses import replace
from pathlib import Path

from blockdraft_bench.common.flags import add_output_arguments, check_at_least
from blockdraft_bench.common.run import Outcome, Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench scaling`."""
    option = parser.add_argument
    option("--acceptance", type=Path, required=True, help="acceptance.json of `bench acceptance`")
    option("--kflat", type=Path, required=True, help="kflat.json of `bench kflat`")
    option(
        "--measured",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="more acceptance.json of other block sizes, to compare with",
    )
    option("--dataset", nargs="+", metavar="SET", help="datasets of the files to pool; else all")
    option("--temperature", type=float, default=0.0, help="results of the files to use")
    option("--batch", type=int, default=1, help="sequences; which curves of the kflat.json to use")
    option("--draft-seconds", type=float, help="time of the drafter's pass; else it counts as free")
    option("--overhead-seconds", type=float, default=0.0, help="other time of a drafted step")
    option("--seed", type=int, default=0, help="of the intervals")
    add_output_arguments(parser)


def measure(args: argparse.Namespace, run: Run) -> Outcome:
    """Fit the decay of acceptance, predict from it."""
    least_seconds = dict.fromkeys(("temperature", "draft_seconds", "overhead_seconds"), 0)
    check_at_least(args, {"batch": 1, **least_seconds})
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

    fitted = read_acceptance(args.acceptance, args.temperature, args.dataset)
    others = [read_acceptance(path, args.temperature, args.dataset) for path in args.measured or ()]
    curves = read_cost_curves(args.kflat, args.batch)
    fit = fit_decay(fitted.counts, per_answer=fitted.per_answer, seed=args.seed)
    lengths = predict_lengths(fit, fitted, others, seed=args.seed)
    sizes = [length.block_size for length in lengths]
    cost = DraftCost(args.draft_seconds or 0.0, args.overhead_seconds)
    report = ScalingReport(
        **origin(),
        acceptance_file=fitted.source,
        measured_files=tuple(other.source for other in others),
        kflat_file=file_name(args.kflat),
        datasets=None if args.dataset is None else tuple(args.dataset),
        temperature=args.temperature,
        batch=args.batch,
        draft_seconds=args.draft_seconds,
        overhead_seconds=args.overhead_seconds,
        seed=args.seed,
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
