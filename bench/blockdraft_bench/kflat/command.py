"""`blockdraft bench kflat`: what verifying K tokens costs against verifying one."""

import argparse
import functools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockdraft_aot.model_shapes import SHAPES
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.flag_checks import check_at_least
from blockdraft_bench.common.flags import TARGET_HELP, add_output_arguments, output_folder
from blockdraft_bench.kflat.curve import Curve, Point, StepShape, counted_point, step_shapes
from blockdraft_runtime.settings.drafter import DTYPES, DrafterSettings

if TYPE_CHECKING:
    from rich.progress import Progress

    from blockdraft_aot.topology import Topology
    from blockdraft_models.weights.checkpoint import Checkpoint

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


def run(args: argparse.Namespace) -> int:
    """Measure and model, write the report, print it; return the exit code."""
    args.topology = args.topology or []
    args.model_shape = args.model_shape or [TARGET_SHAPE]
    _check(args)
    shapes = step_shapes(args.batch, args.context_tokens, args.max_tokens)
    # Imported here: `--help` must not wait for jax.
    from blockdraft_bench.common.environment import describe_environment
    from blockdraft_bench.common.line_store import digest
    from blockdraft_bench.common.preparation import keep_executables, shown_progress
    from blockdraft_bench.kflat.report import NAME, report_json, write_report
    from blockdraft_models.weights.loading import load_checkpoint_config
    from blockdraft_models.weights.resolve import resolve_target

    topologies = [_described(name) for name in args.topology]
    keep_executables()
    path = resolve_target(args.target)
    checkpoint = load_checkpoint_config(path)
    with shown_progress() as progress:
        curves = _measured(args, path, shapes, progress) if args.runs else []
        curves += _modelled(args, checkpoint, topologies, shapes, progress)
    environment = describe_environment()
    settings = {
        "target": {"name": checkpoint.config.name, "fingerprint": checkpoint.fingerprint},
        "dtype": args.dtype,
        "max_tokens": args.max_tokens,
        "context_tokens": args.context_tokens,
        "batch": args.batch,
        "runs": args.runs,
        "tolerance": args.tolerance,
        "topology": args.topology,
        "model_shape": args.model_shape,
    }
    identity = digest({**settings, "hardware": environment["hardware"]})
    output = output_folder(args.output, NAME, identity)
    text, table = write_report(report_json(environment, settings, curves), curves, output)
    print(f"written to {output}", file=sys.stderr)
    sys.stdout.write(text if args.json else table)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is loaded."""
    check_at_least(args, {"max_tokens": 2, "runs": 0})
    if not all(context >= 0 for context in args.context_tokens):
        raise BenchUsageError("--context-tokens must be 0 or more")
    for batch in args.batch:
        if not (0 < batch <= args.max_tokens and batch & (batch - 1) == 0):
            raise BenchUsageError(
                f"--batch must be powers of two up to --max-tokens ({args.max_tokens}), got {batch}"
            )
    if not (math.isfinite(args.tolerance) and args.tolerance >= 0):
        raise BenchUsageError("--tolerance must be 0 or more")
    for name in ("context_tokens", "batch", "topology", "model_shape"):
        values = getattr(args, name)
        if len(set(values)) < len(values):
            raise BenchUsageError(f"--{name.replace('_', '-')} has the same value twice")
    if not args.runs and not args.topology:
        raise BenchUsageError("--runs 0 measures nothing; say --topology to model a TPU")


def _measured(
    args: argparse.Namespace, path: Path, shapes: Sequence[StepShape], progress: "Progress"
) -> list[Curve]:
    """Return the curves of this machine."""
    from blockdraft_bench.common.environment import hardware
    from blockdraft_bench.kflat.device_probe import DeviceProbe
    from blockdraft_bench.kflat.measure import StepTimer, median_and_quartiles, time_in_rounds
    from blockdraft_models.decoder.dtypes import compute_dtype
    from blockdraft_models.weights.loading import load_decoder

    dtype = compute_dtype(args.dtype)
    task = progress.add_task("loading", total=None)
    decoder, checkpoint = load_decoder(path, dtype=dtype)
    timer = StepTimer(
        decoder,
        shapes,
        dtype.name,
        lambda done, total: progress.update(
            task, description="compiling", completed=done, total=total
        ),
    )
    timing = progress.add_task("timing", total=len(shapes) * (args.runs + 1))
    probe = DeviceProbe(dtype)
    seconds = time_in_rounds(
        timer, shapes, args.runs, probe, on_step=lambda: progress.advance(timing)
    )
    points = {
        shape: counted_point(
            checkpoint.config, shape, dtype.itemsize, *median_and_quartiles(seconds[shape])
        )
        for shape in shapes
    }
    machine = hardware()
    device = machine["accelerator"] or f"{machine['cpu']}, {machine['cores']} cores"
    return _curves(
        points,
        device=device,
        model=checkpoint.config.name,
        modelled=False,
        bytes_per_weight=dtype.itemsize,
        roofline=probe.roofline(),
    )


def _modelled(
    args: argparse.Namespace,
    checkpoint: "Checkpoint",
    topologies: Sequence["Topology"],
    shapes: Sequence[StepShape],
    progress: "Progress",
) -> list[Curve]:
    """Return the curves of TPUs that are not there."""
    import jax.numpy as jnp

    from blockdraft_bench.kflat.modelled import modelled_points

    # What "auto" means on a TPU.
    dtype = jnp.dtype("float32" if args.dtype == "float32" else "bfloat16")
    configs = [SHAPES.get(name, checkpoint.config) for name in args.model_shape]
    curves = []
    for topology in topologies:
        chips = topology.mesh.size
        for config in configs:
            task = progress.add_task(
                f"modelling {config.name} on {topology.name}", total=len(shapes)
            )
            points = modelled_points(
                config, shapes, dtype, topology, on_step=functools.partial(progress.advance, task)
            )
            curves += _curves(
                points,
                device=f"{chips} x {topology.kind} ({topology.name})",
                model=config.name,
                modelled=True,
                bytes_per_weight=dtype.itemsize,
                roofline=topology.roofline.of_chips(chips),
            )
    return curves


def _described(name: str) -> "Topology":
    """Return the chips of a topology, or refuse the flag."""
    from blockdraft_aot.errors import AotError
    from blockdraft_aot.topology import describe_topology

    try:
        return describe_topology(name)
    except AotError as error:
        raise BenchUsageError(f"--topology: {error}") from error


def _curves(points: dict[StepShape, Point], **common: Any) -> list[Curve]:
    """Return the points as curves, by batch and context."""
    groups: dict[tuple[int, int], list[Point]] = {}
    for shape, point in points.items():
        groups.setdefault((shape.batch, shape.context_tokens), []).append(point)
    return [
        Curve(batch=batch, context_tokens=context, points=tuple(group), **common)
        for (batch, context), group in groups.items()
    ]
