"""`blockdraft models`: describe the served model and its drafter."""

import argparse
import dataclasses
import importlib
from typing import TYPE_CHECKING

from blockdraft_client.cli.options import add_connection_arguments, connect
from blockdraft_client.cli.output import OK, print_json

if TYPE_CHECKING:
    from blockdraft_client.model_info import ModelInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft models`."""
    parser.add_argument("model", nargs="?", default="", help="model (default: the served one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--known",
        dest="known_pairs",
        action="store_true",
        help="instead: list the published pairs of target and drafter; asks no server",
    )
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the description."""
    if args.known_pairs:
        # By name: the client must not import the servers.
        print("\n".join(importlib.import_module("blockdraft_drafter.known").table()))
        return OK
    with connect(args) as client:
        model = client.model(args.model)
    if args.json:
        print_json(model_json(model))
    else:
        for label, value in _lines(model):
            print(f"{label:<20}{value}")
    return OK


def model_json(model: "ModelInfo") -> dict[str, object]:
    """Return the description as a JSON object."""
    return {
        "model": model.name,
        "target_fingerprint": model.target_fingerprint,
        "vocabulary_size": model.vocabulary_size,
        "max_context_tokens": model.max_context_tokens,
        "server_version": model.server_version,
        "exactness": dataclasses.asdict(model.exactness) if model.exactness is not None else None,
        "drafter": dataclasses.asdict(model.drafter) if model.drafter is not None else None,
        "drafting": dataclasses.asdict(model.drafting),
        "adapters": model.adapters,
    }


def _lines(model: "ModelInfo") -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = [
        ("model", model.name),
        ("fingerprint", model.target_fingerprint),
        ("vocabulary", model.vocabulary_size),
        ("context", f"{model.max_context_tokens} tokens"),
        ("server version", model.server_version),
        ("numerics", model.exactness or "not tested"),
    ]
    lines += [("adapter", f"{model.name}:{adapter}") for adapter in model.adapters]
    drafter = model.drafter
    if drafter is None:
        lines.append(("drafter", "none connected"))
    else:
        lines += [
            ("drafter", f"{drafter.method}, blocks of {drafter.block_size}"),
            ("drafter fingerprint", drafter.fingerprint),
            ("drafter trained", "yes" if drafter.trained else "no"),
        ]
        lines += [("drafter version", drafter.version)] if drafter.version else []
    lines.append(("drafting", model.drafting))
    for source, counts in model.drafting.sources.items():
        words = f"{counts.accepted} of {counts.drafted} drafted tokens accepted"
        lines.append((f"  {source.replace('_', ' ')}", words))
    return lines
