"""`blockdraft health`: say whether the server takes requests."""

import argparse
import sys
from typing import TYPE_CHECKING

from blockdraft_client.cli.models import model_json
from blockdraft_client.cli.options import add_connection_arguments, connect
from blockdraft_client.cli.output import FAILED, OK, print_json
from blockdraft_client.errors import BlockdraftError, UnavailableError

if TYPE_CHECKING:
    from blockdraft_client.client import Client
    from blockdraft_client.model_info import ModelInfo

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
        model, reason = (None, None) if status == UNREACHABLE else _details(client)
        model = model if status == HealthStatus.SERVING else None
        if args.json:
            details = None if model is None else model_json(model)
            exactness, drafting = ((details or {}).get(name) for name in ("exactness", "drafting"))
            state = {"address": client.address, "status": status, "reason": reason}
            print_json({**state, "exactness": exactness, "drafting": drafting})
        else:
            words = [reason] if model is None else [model.exactness, f"drafting {model.drafting}"]
            print(", ".join([status, *(str(word) for word in words if word)]))
    return OK if status == HealthStatus.SERVING else FAILED


def _details(client: "Client") -> "tuple[ModelInfo | None, str | None]":
    """Return the description of the model, or the reason why no verifier is ready."""
    try:
        return client.model(), None
    except UnavailableError as error:
        return None, str(error)
    except BlockdraftError:
        # A key may be missing: health is reported without it.
        return None, None
