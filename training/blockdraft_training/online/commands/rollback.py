"""`blockdraft learn rollback`: return to the version before."""

import argparse

from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_training.online.commands.folder import folder
from blockdraft_training.online.settings import FolderSettings

CONFIGURATION = Configuration("learn rollback", FolderSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    CONFIGURATION.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Go back and return the exit code."""
    version = VersionStore(folder(CONFIGURATION.read(args))).roll_back("by hand")
    print(f"version {version.number} serves")
    return 0
