"""`blockdraft train`: make corpora and drafters."""

import argparse

from blockdraft_training.subcommands import Subcommand, add_subcommands, run_subcommand

SUBCOMMANDS = {
    "corpus": Subcommand(
        "blockdraft_training.corpus.command", "let the target answer prompts: training data"
    ),
    "dflash": Subcommand("blockdraft_training.dflash_command", "train a DFlash drafter"),
    "eagle3": Subcommand("blockdraft_training.eagle3_command", "train an EAGLE-3 drafter"),
    "card": Subcommand(
        "blockdraft_training.card_command", "put measured acceptance into a drafter's card"
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    return run_subcommand("train", args)
