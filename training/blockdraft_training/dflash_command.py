"""`blockdraft train dflash`: corpus in, DFlash drafter out."""

import argparse

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_training.settings import DFlashSettings
from blockdraft_training.train_and_export import train_and_export

CONFIGURATION = Configuration("train dflash", DFlashSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    CONFIGURATION.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Train and return the exit code."""
    settings = CONFIGURATION.read(args)
    # Imported here: `--help` must not wait for jax.
    from blockdraft_training.methods.dflash import DFlashRecipe

    train_and_export(DFlashRecipe(settings), as_json=args.json)
    return 0
