"""`blockdraft health`: say whether the server takes requests."""

import argparse
import sys

from blockdraft_client.cli.exit_codes import FAILED, OK
from blockdraft_client.cli.options import add_connection_arguments, connect
from blockdraft_client.cli.output import print_json
from blockdraft_client.errors import BlockdraftError

DEFAULT_TIMEOUT_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft health`."""
    parser.epilog = "Exits 0 if the server is SERVING, otherwise 1."
    parser.add_argument(
        "--service", default="", metavar="NAME", help="full name of a service (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser)
    parser.set_defaults(timeout=DEFAULT_TIMEOUT_SECONDS)


def run(args: argparse.Namespace) -> int:
    """Print the status."""
    from blockdraft_client.inspection import HealthStatus

    with connect(args) as client:
        try:
            status: str = client.health(args.service)
        except BlockdraftError as error:
            # For a probe, no answer is an answer.
            status = "UNREACHABLE"
            print(f"blockdraft: {error}", file=sys.stderr)
        if args.json:
            print_json({"target": client.target, "status": status})
        else:
            print(status)
    return OK if status == HealthStatus.SERVING else FAILED
