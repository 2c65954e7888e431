"""`blockdraft compile`: compile for a TPU that is not there."""

import argparse
import os
import sys
from dataclasses import asdict
from functools import partial

from blockdraft_aot.errors import AotError, DoesNotFitError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft compile`."""
    option = parser.add_argument
    option("--topology", required=True, metavar="TPU", help="chips, such as v5p:2x2x1 or v5e:1x1")
    option(
        "--tpu-split",
        metavar="V+D",
        help="chips of the verifier and of the drafter (default: half each)",
    )
    option(
        "--target",
        default="llama-3.1-8b",
        metavar="SPEC",
        help="a published shape, such as llama-3.1-8b or qwen3-4b, or what `serve` takes "
        "(default: %(default)s)",
    )
    option(
        "--drafter",
        default="dflash",
        metavar="SPEC",
        help="dflash or eagle3 in the published shape, a directory, or none (default: %(default)s)",
    )
    option(
        "--weights",
        default="float",
        choices=("float", "int8"),
        help="of the target's layers (default: %(default)s)",
    )
    for flag, default, text in (
        ("--block-size", 16, "tokens per block, where the drafter does not say"),
        ("--max-sequences", 16, "sequences decoded at once"),
        ("--max-context-tokens", 4096, "tokens of one sequence"),
        ("--max-step-tokens", 1024, "tokens of one forward pass"),
        ("--page-size", 32, "tokens per page of the KV cache"),
        ("--context-tokens", 1024, "tokens of each sequence, for the modelled cost of attention"),
    ):
        option(flag, type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    option(
        "--memory-share",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="share of each chip's memory that may be used (default: %(default)s)",
    )
    option(
        "--ends-only",
        action="store_true",
        help="compile only the smallest and the largest program of each kind",
    )
    option("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Compile, print what is known, return the exit code."""
    # Before jax is imported: what is compiled for is not what compiles.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    try:
        _check(args)
        sys.stdout.write(_survey(args))
    except DoesNotFitError as error:
        print(f"blockdraft compile: {error}", file=sys.stderr)
        return 1
    except AotError as error:
        print(f"blockdraft compile: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError, ValueError) as error:
        print(f"blockdraft compile: {error}", file=sys.stderr)
        return 1
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("max_sequences", "max_context_tokens", "max_step_tokens", "page_size"):
        if getattr(args, name) < 1:
            raise AotError(f"--{name.replace('_', '-')} must be positive")
    if args.block_size < 2:
        raise AotError("--block-size must be at least 2")
    if not 0 <= args.context_tokens <= args.max_context_tokens:
        raise AotError("--context-tokens must be from 0 to --max-context-tokens")
    if not 0 < args.memory_share <= 1:
        raise AotError("--memory-share must be above 0 and at most 1")


def _survey(args: argparse.Namespace) -> str:
    from rich.console import Console
    from rich.progress import Progress

    from blockdraft_aot.model_shapes import NO_DRAFTER, drafter_shape, target_shape
    from blockdraft_aot.report import as_json, as_text
    from blockdraft_aot.settings import Pair, ServingLimits
    from blockdraft_aot.survey import SurveyOptions, survey_drafter, survey_verifier
    from blockdraft_aot.topology import describe_topology, role_topologies

    drafting = args.drafter != NO_DRAFTER
    names = role_topologies(args.topology, args.tpu_split, drafting=drafting)
    topologies = [describe_topology(name) for name in names if name is not None]
    target = target_shape(args.target)
    pair = Pair(target, drafter_shape(args.drafter, target, args.block_size), args.weights)
    limits = ServingLimits(
        args.max_sequences, args.max_step_tokens, args.max_context_tokens, args.page_size
    )
    options = SurveyOptions(args.memory_share, args.context_tokens, args.ends_only)
    roles = {}
    with Progress(console=Console(stderr=True)) as progress:
        for role, survey, topology in zip(
            ("verifier", "drafter"), (survey_verifier, survey_drafter), topologies, strict=False
        ):
            task = progress.add_task(f"compiling the {role}", total=None)
            advance = partial(progress.advance, task)
            roles[role] = survey(topology, pair, limits, options, advance)
    if args.json:
        return as_json(roles, pair, limits, asdict(options)) + "\n"
    return as_text(roles, limits)
