"""`blockdraft completion SHELL`: print a script that completes commands and flags."""

import argparse
import importlib
from typing import Any

import shtab

from blockdraft_client.cli.output import OK

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `blockdraft completion`."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that you use")


def run(args: argparse.Namespace) -> int:
    """Print the script; commands whose packages are not installed have no flags in it."""
    print(shtab.complete(_whole_parser(), shell=args.shell))
    return OK


def _whole_parser() -> argparse.ArgumentParser:
    # It imports this module when it is run.
    from blockdraft_client.cli.main import COMMANDS

    parser = argparse.ArgumentParser("blockdraft", add_help=False)
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        child = commands.add_parser(name, help=command.summary)
        try:
            module: Any = importlib.import_module(command.module)
        except ModuleNotFoundError:
            continue
        module.add_arguments(child)
        for action in child._actions:
            # A shell has room for what `--help` leaves out.
            action.help = "" if action.help is argparse.SUPPRESS else action.help
    return parser
