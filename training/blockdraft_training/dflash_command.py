"""`blockdraft train dflash`: corpus in, DFlash drafter out."""

import argparse

from blockdraft_training.options import (
    add_train_arguments,
    layer_ids,
    settings_given,
    train_and_export,
)
from blockdraft_training.settings import DFlashSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_train_arguments(parser, feature_layers="five, spread evenly")
    option = parser.add_argument
    option("--layers", type=int, default=2, help="draft layers")
    option(
        "--copied-layers",
        type=layer_ids,
        metavar="I,J,...",
        help="target layers the draft layers start from (default: the first and the last ones)",
    )
    option(
        "--sample-from-anchor",
        action="store_true",
        help="let the anchor's slot draft too: one mask fewer per block",
    )
    option(
        "--markov-rank",
        type=int,
        default=0,
        help="rank of a bias on each token by the one before it (DSpark); 0: none",
    )


def run(args: argparse.Namespace) -> int:
    """Train and return the exit code."""
    settings = DFlashSettings(**settings_given(args, DFlashSettings))
    from blockdraft_training.methods.dflash import DFlashRecipe

    train_and_export(DFlashRecipe(settings), as_json=args.json)
    return 0
