"""`blockdraft learn`: let a drafter learn while it serves, and look after its versions."""

import argparse

from blockdraft_training.subcommands import Subcommand, add_subcommands, run_subcommand

_COMMANDS = "blockdraft_training.online.commands"
SUBCOMMANDS = {
    "run": Subcommand(f"{_COMMANDS}.run", "learn from what is recorded, without an end"),
    "list": Subcommand(f"{_COMMANDS}.list", "show the versions, and how far learning is"),
    "promote": Subcommand(f"{_COMMANDS}.promote", "let a version serve"),
    "rollback": Subcommand(f"{_COMMANDS}.rollback", "return to the version before"),
    "clear": Subcommand(f"{_COMMANDS}.clear", "delete the recordings"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    return run_subcommand("learn", args)
