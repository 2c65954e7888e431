"""`blockdraft learn list`: the versions, and how far learning is."""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from blockdraft_drafter.learning.journal import Journal
from blockdraft_drafter.learning.versions import Version, VersionStore
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_training.online.commands.folder import folder
from blockdraft_training.online.settings import FolderSettings

CONFIGURATION = Configuration("learn list", FolderSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    CONFIGURATION.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print and return the exit code."""
    # Imported here: `--help` must not wait for numpy.
    from blockdraft_drafter.learning.recordings import Recordings

    directory = folder(CONFIGURATION.read(args))
    store = VersionStore(directory)
    versions, current = store.list(), store.current()
    number = None if current is None else current.number
    recordings = Recordings(directory / "recordings", 0)
    count, size = len(recordings.names()), recordings.size_bytes()
    journal = Journal.read(directory) or Journal()
    if args.json:
        told = {
            "directory": str(directory),
            "current": number,
            "versions": [asdict(version) for version in versions],
            "recordings": {"count": count, "bytes": size},
            "learning": asdict(journal),
        }
        print(json.dumps(told))
        return 0
    print(f"{directory}: {count} recordings, {size / 2**20:.1f} MiB")
    print(
        f"{journal.total_steps} steps of learning, {journal.steps} since the candidate began,"
        f" {journal.promoted} promoted, {journal.started_over} given up"
    )
    for line in table(versions, number):
        print(line)
    return 0


def table(versions: Sequence[Version], current: int | None) -> list[str]:
    """Return one line for each version; the current one has a star."""
    return [
        f"{'*' if version.number == current else ' '} {version.number:>4}"
        f"  {time.strftime('%Y-%m-%d %H:%M', time.gmtime(version.made_at))}"
        f"  {version.kind:<11}  {version.state:<11}  τ {_tau(version)}  {version.reason}".rstrip()
        for version in versions
    ]


def _tau(version: Version) -> str:
    return "   -" if version.held_out_tau is None else f"{version.held_out_tau:.2f}"
