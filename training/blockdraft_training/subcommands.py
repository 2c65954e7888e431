"""Commands that are made of commands: `blockdraft train`, `blockdraft learn`."""

import argparse
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdraft_models.errors import ModelError
from blockdraft_training.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One subcommand: a module with `add_arguments(parser)` and `run(args) -> exit code`."""

    module: str
    summary: str


def add_subcommands(parser: argparse.ArgumentParser, subcommands: Mapping[str, Subcommand]) -> None:
    """Add subcommands to a command's parser."""
    choices = parser.add_subparsers(metavar="WHAT", required=True)
    for name, subcommand in subcommands.items():
        module: Any = importlib.import_module(subcommand.module)
        child = choices.add_parser(name, help=subcommand.summary, allow_abbrev=False)
        module.add_arguments(child)
        child.set_defaults(run_subcommand=module.run)


def run_subcommand(command: str, args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    try:
        code: int = args.run_subcommand(args)
    except (TrainingError, ModelError, OSError, RuntimeError, ValueError) as error:
        # Whatever is wrong with the input, its message says; a trace would hide it.
        print(f"blockdraft {command}: {error}", file=sys.stderr)
        return 1
    return code
