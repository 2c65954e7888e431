"""`blockdraft learn promote N`: let a version serve."""

import argparse

from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_training.online.commands.folder import folder
from blockdraft_training.online.settings import FolderSettings

CONFIGURATION = Configuration("learn promote", FolderSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("number", metavar="N", type=int, help="number of the version")
    CONFIGURATION.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Promote and return the exit code."""
    store = VersionStore(folder(CONFIGURATION.read(args)))
    version = store.promote(args.number, "by hand")
    print(f"version {version.number} serves")
    return 0
