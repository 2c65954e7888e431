"""`blockdraft bench`: measure."""

import argparse
import functools
import importlib
import sys
from dataclasses import dataclass
from typing import Any

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.run import run_measurement
from blockdraft_bench.common.settings import OutputSettings


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One subcommand: a module with `add_arguments(parser)` and `measure(settings, run)`.

    Settings are what its `CONFIGURATION` makes of the flags, or the flags where it has none.
    """

    module: str
    summary: str


SUBCOMMANDS = {
    "acceptance": Subcommand(
        "blockdraft_bench.acceptance.command", "how many tokens a verification gains, by dataset"
    ),
    "decode": Subcommand(
        "blockdraft_bench.decode.command", "plain decoding and draft methods, one answer at a time"
    ),
    "door": Subcommand(
        "blockdraft_bench.door.command", "tokens through server and SDK, with a target that sleeps"
    ),
    "host": Subcommand(
        "blockdraft_bench.host.command",
        "the engine's own time per step, with a target that is free",
    ),
    "int8": Subcommand(
        "blockdraft_bench.int8.command", "how far int8 weights move a target's logits"
    ),
    "kflat": Subcommand(
        "blockdraft_bench.kflat.command", "the cost of verifying K tokens; measured and modelled"
    ),
    "link": Subcommand(
        "blockdraft_bench.link.command", "what the link between verifier and drafter costs"
    ),
    "peers": Subcommand(
        "blockdraft_bench.peers.command", "other programs on the same prompts and weights"
    ),
    "processor": Subcommand(
        "blockdraft_bench.processor.command", "a row of the matrix of processors, for this one"
    ),
    "scaling": Subcommand(
        "blockdraft_bench.scaling.command", "speed-up predicted from acceptance and costs"
    ),
    "report": Subcommand(
        "blockdraft_bench.report.command", "one page and figure of the results of all these"
    ),
    "serve": Subcommand(
        "blockdraft_bench.serve.command", "a service under load; the cost of its processes"
    ),
    "slice": Subcommand(
        "blockdraft_bench.slice.command", "what announcing a step to a slice's processes costs"
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    choices = parser.add_subparsers(metavar="WHAT", required=True)
    for name, subcommand in SUBCOMMANDS.items():
        module: Any = importlib.import_module(subcommand.module)
        child = choices.add_parser(name, help=subcommand.summary, allow_abbrev=False)
        module.add_arguments(child)
        child.set_defaults(run_subcommand=functools.partial(_run, name, module))


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    try:
        code: int = args.run_subcommand(args)
    except BenchUsageError as error:
        print(f"blockdraft bench: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError, ValueError) as error:
        # Whatever is wrong with the input, its message says; a trace would hide it.
        print(f"blockdraft bench: {error}", file=sys.stderr)
        return 1
    return code


def _run(name: str, module: Any, args: argparse.Namespace) -> int:
    configuration = getattr(module, "CONFIGURATION", None)
    if configuration is None:
        return run_measurement(name, module.measure, args, OutputSettings(args.output, args.json))
    settings = configuration.read(args)
    return run_measurement(name, module.measure, settings, settings.result)
