"""`blockdraft bench kflat`: what verifying K tokens costs against verifying one."""

from dataclasses import replace
from typing import TYPE_CHECKING

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.kflat.settings import TARGET_SHAPE, KFlatSettings
from blockdraft_runtime.configuration.command import Configuration

if TYPE_CHECKING:
    from blockdraft_aot.topology import Topology

CONFIGURATION = Configuration("bench kflat", KFlatSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: KFlatSettings, run: Run) -> Outcome:
    """Time the steps, model those of other chips."""
    # Imported here: `--help` must not wait for jax.
    from blockdraft_aot.model_shapes import SHAPES
    from blockdraft_bench.common.provenance import Target, origin
    from blockdraft_bench.kflat.decoder_cost import step_shapes
    from blockdraft_bench.kflat.figure import draw
    from blockdraft_bench.kflat.measure import measured_curves
    from blockdraft_bench.kflat.modelled import modelled_curves
    from blockdraft_bench.kflat.report import MODELLED_NOTE, KFlatReport, markdown
    from blockdraft_models.executables import keep_executables
    from blockdraft_models.weights.loading import load_checkpoint_config
    from blockdraft_models.weights.resolve import resolve_target

    wanted = settings.steps
    for name in wanted.model_shape:
        if name not in (known := (TARGET_SHAPE, *SHAPES)):
            raise BenchUsageError(f"--model-shape must be of {', '.join(known)}, got {name}")
    shapes = step_shapes(wanted.batch, wanted.context_tokens, wanted.max_tokens)
    topologies = [_described(name) for name in wanted.topology]
    if wanted.runs:
        # What is compiled for other chips cannot be loaded here again.
        keep_executables()
    path = resolve_target(settings.target)
    checkpoint = load_checkpoint_config(path)
    report = KFlatReport(
        **origin(run.commit),
        **vars(wanted),
        target=Target.of(checkpoint),
        modelled_note=MODELLED_NOTE if topologies else None,
    )
    run.identify(replace(report, command="", commit=None, versions={}))
    curves = measured_curves(path, shapes, wanted.runs, wanted.dtype, run) if wanted.runs else []
    configs = [SHAPES.get(name, checkpoint.config) for name in wanted.model_shape]
    curves += modelled_curves(configs, topologies, shapes, wanted.dtype, run)
    report = replace(
        report,
        curves=tuple(curve.summary(wanted.tolerance) for curve in curves),
        results=tuple(step for curve in curves for step in curve.steps),
    )
    return Outcome(report, markdown(report), {"": draw(report)})


def _described(name: str) -> "Topology":
    """Return the chips of a topology, or refuse the flag."""
    from blockdraft_aot.settings import AotError
    from blockdraft_aot.topology import describe_topology

    try:
        return describe_topology(name)
    except AotError as error:
        raise BenchUsageError(f"--topology: {error}") from error
