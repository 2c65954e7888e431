"""`blockdraft train card`: put measured acceptance into a drafter's model card."""

import argparse
from pathlib import Path

from blockdraft_training.card import add_acceptance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("drafter", type=Path, help="directory of an exported drafter")
    parser.add_argument(
        "--acceptance", type=Path, required=True, help="acceptance.json of `bench acceptance`"
    )


def run(args: argparse.Namespace) -> int:
    """Edit the card in place."""
    add_acceptance(args.drafter, args.acceptance)
    print(args.drafter / "README.md")
    return 0
