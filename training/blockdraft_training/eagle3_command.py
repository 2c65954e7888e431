"""`blockdraft train eagle3`: corpus in, EAGLE-3 drafter out."""

import argparse

from blockdraft_training.options import (
    add_train_arguments,
    settings_given,
    train_and_export,
)
from blockdraft_training.settings import TrainSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_train_arguments(parser, feature_layers="1, L/2 - 1 and L - 4 of L, as published")


def run(args: argparse.Namespace) -> int:
    """Train and return the exit code."""
    settings = TrainSettings(**settings_given(args, TrainSettings))
    from blockdraft_training.methods.eagle3 import Eagle3Recipe

    train_and_export(Eagle3Recipe(settings), as_json=args.json)
    return 0
