"""`blockdraft version`: print the installed version."""

import argparse

from blockdraft_client.cli.output import OK, print_json
from blockdraft_runtime import version


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft version`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the version."""
    if args.json:
        print_json({"version": version()})
    else:
        print(f"blockdraft {version()}")
    return OK
