"""`blockdraft learn`: let a drafter learn while it serves, and look after its versions."""

import argparse
import importlib

from blockdraft_training.command import Subcommand, add_subcommands, run_subcommand


def _subcommand(name: str, summary: str) -> Subcommand:
    module = importlib.import_module(f"blockdraft_training.online.commands.{name}")
    configuration = getattr(module, "CONFIGURATION", None)
    return Subcommand(summary, module.add_arguments, module.run, configuration)


SUBCOMMANDS = {
    "run": _subcommand("run", "learn from what is recorded, without an end"),
    "list": _subcommand("list", "show the versions, and how far learning is"),
    "promote": _subcommand("promote", "let a version serve"),
    "rollback": _subcommand("rollback", "return to the version before"),
    "clear": _subcommand("clear", "delete the recordings"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    return run_subcommand("learn", args)
