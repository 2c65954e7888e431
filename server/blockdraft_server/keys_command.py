"""`blockdraft keys`: make API keys."""

import argparse
import os
import secrets
import sys
from pathlib import Path

_PREFIX = "bd-"
# Too many to guess, so a digest of them needs neither a salt nor a slow hash.
_RANDOM_BYTES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `blockdraft keys`."""
    parser.add_argument("action", choices=["new"], help="make a random key and print it, once")
    parser.add_argument("name", metavar="NAME", help="the tenant whose key it is")
    parser.add_argument("--max-requests", type=int, metavar="N", help="maximum requests at a time")
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="maximum tokens of all requests at a time: prompts and longest completions",
    )
    parser.add_argument(
        "--background", action="store_true", help="its requests give way to all others"
    )
    parser.add_argument(
        "--no-learning",
        action="store_true",
        help="keep the tenant's requests out of the drafter's training samples",
    )
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="file of --api-key-file to which the line is added that lets the key in; unset: the "
        "line is printed too",
    )


def run(args: argparse.Namespace) -> int:
    """Make a key; return the exit code."""
    # Imported here: `--help` must not wait for gRPC.
    from blockdraft_server.keys import line_of

    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    try:
        limits = (args.max_requests, args.max_tokens)
        switches = {"background": args.background, "recordable": not args.no_learning}
        line = line_of(args.name, key, *limits, **switches)
        if args.file is not None:
            _append(args.file, line)
    except (OSError, ValueError) as error:
        print(f"blockdraft keys: {error}", file=sys.stderr)
        return 2
    print(key)
    if args.file is None:
        print(line)
    return 0


def _append(file: Path, line: str) -> None:
    """Add a line to a file of keys, which may not be there yet; its owner alone may read it."""
    from blockdraft_server.keys import parse_keys

    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    with open(descriptor, "r+", encoding="utf-8") as opened:
        text = opened.read()
        added = ("\n" if text and not text.endswith("\n") else "") + line + "\n"
        # All together: the tenant may be in the file already, with other limits.
        parse_keys(text + added)
        opened.write(added)
