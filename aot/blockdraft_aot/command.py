"""`blockdraft compile`: compile for a TPU that is not there."""

import argparse
import os
import sys
from dataclasses import replace
from functools import partial

from blockdraft_aot.settings import AotError, CompileSettings, DoesNotFitError
from blockdraft_runtime.configuration.command import Configuration

CONFIGURATION = Configuration("compile", CompileSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft compile`."""
    CONFIGURATION.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Compile, print the survey, return the exit code."""
    settings = CONFIGURATION.read(args)
    # Before jax is imported: the CPU compiles for the TPU.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    try:
        sys.stdout.write(_survey(settings, in_json=args.json))
    except (OSError, RuntimeError, ValueError) as error:
        print(f"blockdraft compile: {error}", file=sys.stderr)
        wrong_usage = isinstance(error, AotError) and not isinstance(error, DoesNotFitError)
        return 2 if wrong_usage else 1
    return 0


def _survey(settings: CompileSettings, *, in_json: bool) -> str:
    from rich.console import Console
    from rich.progress import Progress

    from blockdraft_aot.model_shapes import NO_DRAFTER, Pair, drafter_shape, target_shape
    from blockdraft_aot.report import as_json, as_text
    from blockdraft_aot.survey import RoleSurvey, survey_drafter, survey_verifier
    from blockdraft_aot.topology import describe_topology, role_topologies
    from blockdraft_verifier.device.sizes import page_size_on_tpu

    limits = settings.limits
    page_size = page_size_on_tpu(limits.page_size, limits.max_sequences, limits.max_context_tokens)
    settings = replace(settings, limits=replace(limits, page_size=page_size))
    drafting = settings.drafter != NO_DRAFTER
    names = role_topologies(settings.topology, settings.tpu_split, drafting=drafting)
    topologies = [describe_topology(name) for name in names if name is not None]
    target = target_shape(settings.target)
    drafter = drafter_shape(settings.drafter, target, settings.block_size)
    pair = Pair(target, drafter, settings.weights, settings.prompt_lookup_block)
    roles: dict[str, RoleSurvey] = {}
    with Progress(console=Console(stderr=True)) as progress:
        advance = partial(progress.advance, progress.add_task("compiling", total=None))
        if len(topologies) > 1:
            roles["drafter"] = survey_drafter(topologies[1], pair, settings, advance)
        hosted = roles.get("drafter") if settings.tpu_split is None else None
        verifier = survey_verifier(topologies[0], pair, settings, advance, hosted)
    roles = {"verifier": verifier, **roles}
    if in_json:
        return as_json(roles, pair, settings) + "\n"
    return as_text(roles, settings.limits)
