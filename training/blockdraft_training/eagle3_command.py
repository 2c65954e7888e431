"""`blockdraft train eagle3`: corpus in, EAGLE-3 drafter out."""

import argparse

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_training.settings import TrainSettings
from blockdraft_training.train_and_export import train_and_export

CONFIGURATION = Configuration("train eagle3", TrainSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    CONFIGURATION.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Train and return the exit code."""
    settings = CONFIGURATION.read(args)
    # Imported here: `--help` must not wait for jax.
    from blockdraft_training.methods.eagle3 import Eagle3Recipe

    train_and_export(Eagle3Recipe(settings), as_json=args.json)
    return 0
