"""`blockdraft train`: make corpora and drafters."""

import argparse
import importlib
import sys
from dataclasses import dataclass
from typing import Any

from blockdraft_training.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One subcommand: a module with `add_arguments(parser)` and `run(args) -> exit code`."""

    module: str
    summary: str


SUBCOMMANDS = {
    "corpus": Subcommand(
        "blockdraft_training.corpus.command", "let the target answer prompts: training data"
    ),
    "dflash": Subcommand("blockdraft_training.dflash_command", "train a DFlash drafter"),
    "eagle3": Subcommand("blockdraft_training.eagle3_command", "train an EAGLE-3 drafter"),
    "card": Subcommand(
        "blockdraft_training.card_command", "put measured acceptance into a drafter's card"
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    choices = parser.add_subparsers(metavar="WHAT", required=True)
    for name, subcommand in SUBCOMMANDS.items():
        module: Any = importlib.import_module(subcommand.module)
        child = choices.add_parser(name, help=subcommand.summary)
        module.add_arguments(child)
        child.set_defaults(run_subcommand=module.run)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    try:
        code: int = args.run_subcommand(args)
    except (TrainingError, OSError, RuntimeError, ValueError) as error:
        # Whatever is wrong with the input, its message says; a trace would hide it.
        print(f"blockdraft train: {error}", file=sys.stderr)
        return 1
    return code
