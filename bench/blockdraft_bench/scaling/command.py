"""`blockdraft bench scaling`: speed-up predicted from measured acceptance and costs."""

import argparse
import math
import sys
from pathlib import Path

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.flag_checks import check_at_least, check_temperatures
from blockdraft_bench.common.flags import add_output_arguments, output_folder


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


def run(args: argparse.Namespace) -> int:
    """Fit, predict, write the report, print it; return the exit code."""
    _check(args)
    # Imported here: `--help` must not wait for numpy and scipy.
    from blockdraft_bench.common.environment import describe_environment
    from blockdraft_bench.common.line_store import digest
    from blockdraft_bench.scaling.decay import fit_decay
    from blockdraft_bench.scaling.inputs import read_acceptance, read_cost_curves
    from blockdraft_bench.scaling.predict import predict_lengths, predict_speeds
    from blockdraft_bench.scaling.prediction import DraftCost
    from blockdraft_bench.scaling.report import NAME, report_json, write_report

    fitted = read_acceptance(args.acceptance, args.temperature, args.dataset)
    others = [read_acceptance(path, args.temperature, args.dataset) for path in args.measured or ()]
    curves = read_cost_curves(args.kflat, args.batch)
    fit = fit_decay(fitted.counts, per_answer=fitted.per_answer, seed=args.seed)
    lengths = predict_lengths(fit, fitted, others, seed=args.seed)
    sizes = [length.block_size for length in lengths]
    cost = DraftCost(args.draft_seconds or 0.0, args.overhead_seconds)
    speeds = [predict_speeds(fit, fitted.block_size, sizes, curve, cost) for curve in curves]
    settings = {
        "acceptance_file": fitted.source,
        "measured_files": [other.source for other in others],
        "kflat_file": f"{args.kflat.parent.name}/{args.kflat.name}",
        "datasets": args.dataset,
        "temperature": args.temperature,
        "batch": args.batch,
        "draft_seconds": args.draft_seconds,
        "overhead_seconds": args.overhead_seconds,
        "seed": args.seed,
    }
    report = report_json(describe_environment(), settings, fitted, fit, lengths, speeds)
    identity = digest({**settings, "fit": report["fit"], "results": report["results"]})
    output = output_folder(args.output, NAME, identity)
    text, tables = write_report(report, fit, lengths, speeds, output)
    print(f"written to {output}", file=sys.stderr)
    sys.stdout.write(text if args.json else tables)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot be predicted, before anything is read."""
    check_at_least(args, {"batch": 1})
    check_temperatures([args.temperature])
    for name in ("draft_seconds", "overhead_seconds"):
        seconds = getattr(args, name)
        if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
            raise BenchUsageError(f"--{name.replace('_', '-')} must be 0 or more, got {seconds}")
