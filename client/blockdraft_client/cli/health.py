"""`blockdraft health`: say whether the server takes requests."""

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from blockdraft_client.cli.options import add_connection_arguments, connect
from blockdraft_client.cli.output import FAILED, OK, print_json
from blockdraft_client.errors import BlockdraftError, UnavailableError

if TYPE_CHECKING:
    from blockdraft_client.client import Client
    from blockdraft_client.results import ExactnessInfo

DEFAULT_TIMEOUT_SECONDS = 5.0
UNREACHABLE = "UNREACHABLE"


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
            status = UNREACHABLE
            print(f"blockdraft: {error}", file=sys.stderr)
        exactness, reason = (None, None) if status == UNREACHABLE else _details(client)
        if status != HealthStatus.SERVING:
            exactness = None
        if args.json:
            numerics = dataclasses.asdict(exactness) if exactness is not None else None
            state = {"address": client.address, "status": status}
            print_json({**state, "exactness": numerics, "reason": reason})
        else:
            details = exactness or reason
            print(status if details is None else f"{status}, {details}")
    return OK if status == HealthStatus.SERVING else FAILED


def _details(client: "Client") -> "tuple[ExactnessInfo | None, str | None]":
    """Return the result of the verifier's self-test, or the reason why no verifier is ready."""
    try:
        return client.model().exactness, None
    except UnavailableError as error:
        return None, str(error)
    except BlockdraftError:
        # A key may be missing: health is reported without it.
        return None, None
