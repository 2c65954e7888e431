"""`blockdraft health`: say whether the server takes requests."""

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from blockdraft_client.cli.options import add_connection_arguments, connect
from blockdraft_client.cli.output import FAILED, OK, print_json
from blockdraft_client.errors import BlockdraftError

if TYPE_CHECKING:
    from blockdraft_client.client import Client
    from blockdraft_client.results import ExactnessInfo

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
    from blockdraft_client.results import HealthStatus

    with connect(args) as client:
        try:
            status: str = client.health(args.service)
        except BlockdraftError as error:
            # For a probe, a server that does not respond is a result too.
            status = "UNREACHABLE"
            print(f"blockdraft: {error}", file=sys.stderr)
        exactness = _exactness(client) if status == HealthStatus.SERVING else None
        if args.json:
            result = dataclasses.asdict(exactness) if exactness is not None else None
            print_json({"address": client.address, "status": status, "exactness": result})
        else:
            print(status if exactness is None else f"{status}, {exactness}")
    return OK if status == HealthStatus.SERVING else FAILED


def _exactness(client: "Client") -> "ExactnessInfo | None":
    """Return the result of the verifier's self-test, if the server knows it."""
    try:
        return client.model().exactness
    except BlockdraftError:
        # A key may be missing, or the verifier be gone: health is reported without it.
        return None
