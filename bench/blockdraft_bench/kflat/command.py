"""`blockdraft bench kflat`: what verifying K tokens costs against verifying one."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from blockdraft_aot.model_shapes import SHAPES
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.flags import (
    TARGET_HELP,
    add_output_arguments,
    check_at_least,
    check_different,
)
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_runtime.settings.drafter import DTYPES, DrafterSettings

if TYPE_CHECKING:
    from blockdraft_aot.topology import Topology

TARGET_SHAPE = "target"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench kflat`."""
    defaults = DrafterSettings()
    option = parser.add_argument
    option("--target", default=defaults.target, help=TARGET_HELP)
    option("--max-tokens", type=int, default=1024, help="most tokens of a step, K")
    option(
        "--context-tokens",
        type=int,
        nargs="+",
        default=[128, 1024],
        help="tokens of each sequence in the cache",
    )
    option("--batch", type=int, nargs="+", default=[1, 4], help="sequences, powers of two")
    option("--runs", type=int, default=7, help="of each step; 0 times nothing and only models")
    option("--tolerance", type=float, default=0.1, help="how much longer still counts as free")
    option("--dtype", choices=DTYPES, default=defaults.dtype, help="of weights and cache")
    option(
        "--topology",
        nargs="+",
        metavar="TPU",
        help="chips to model, such as v5p:2x2x1 v5e:2x2 v6e:2x2; needs libtpu",
    )
    option(
        "--model-shape",
        nargs="+",
        choices=(TARGET_SHAPE, *SHAPES),
        help="what to model on --topology; else the target",
    )
    add_output_arguments(parser)


def measure(args: argparse.Namespace, run: Run) -> Outcome:
    """Time the steps, model those of other chips."""
    _check(args)
    # Imported here: `--help` must not wait for jax.
    from blockdraft_bench.common.preparation import keep_executables
    from blockdraft_bench.common.provenance import Target, origin
    from blockdraft_bench.kflat.decoder_cost import step_shapes
    from blockdraft_bench.kflat.figure import draw
    from blockdraft_bench.kflat.measure import measured_curves
    from blockdraft_bench.kflat.modelled import modelled_curves
    from blockdraft_bench.kflat.report import MODELLED_NOTE, KFlatReport, markdown
    from blockdraft_models.weights.loading import load_checkpoint_config
    from blockdraft_models.weights.resolve import resolve_target

    shapes = step_shapes(args.batch, args.context_tokens, args.max_tokens)
    topologies = [_described(name) for name in args.topology or ()]
    models = args.model_shape or [TARGET_SHAPE]
    keep_executables()
    path = resolve_target(args.target)
    checkpoint = load_checkpoint_config(path)
    report = KFlatReport(
        **origin(),
        target=Target(checkpoint.fingerprint, checkpoint.config.name),
        dtype=args.dtype,
        max_tokens=args.max_tokens,
        context_tokens=tuple(args.context_tokens),
        batch=tuple(args.batch),
        runs=args.runs,
        tolerance=args.tolerance,
        topology=tuple(args.topology or ()),
        model_shape=tuple(models),
        modelled_note=MODELLED_NOTE if topologies else None,
        curves=(),
        results=(),
    )
    run.identify(replace(report, command="", commit=None, versions={}))
    curves = measured_curves(path, shapes, args.runs, args.dtype, run) if args.runs else []
    configs = [SHAPES.get(name, checkpoint.config) for name in models]
    curves += modelled_curves(configs, topologies, shapes, args.dtype, run)
    report = replace(
        report,
        curves=tuple(curve.summary(args.tolerance) for curve in curves),
        results=tuple(step for curve in curves for step in curve.steps),
    )
    return Outcome(report, markdown(report), {"": draw(report)})


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is loaded."""
    check_at_least(args, {"max_tokens": 2, "context_tokens": 0, "runs": 0, "tolerance": 0})
    for batch in args.batch:
        if not (0 < batch <= args.max_tokens and batch & (batch - 1) == 0):
            raise BenchUsageError(
                f"--batch must be powers of two up to --max-tokens ({args.max_tokens}), got {batch}"
            )
    check_different(args, "context_tokens", "batch", "topology", "model_shape")
    if not args.runs and not args.topology:
        raise BenchUsageError("--runs 0 measures nothing; say --topology to model a TPU")


def _described(name: str) -> "Topology":
    """Return the chips of a topology, or refuse the flag."""
    from blockdraft_aot.errors import AotError
    from blockdraft_aot.topology import describe_topology

    try:
        return describe_topology(name)
    except AotError as error:
        raise BenchUsageError(f"--topology: {error}") from error
