"""`blockdraft learn clear`: delete what was recorded."""

import argparse
import shutil

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_training.online.commands.folder import folder
from blockdraft_training.online.settings import FolderSettings

CONFIGURATION = Configuration("learn clear", FolderSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    CONFIGURATION.add_arguments(parser)
    parser.add_argument(
        "--versions", action="store_true", help="delete the versions and the candidate too"
    )


def run(args: argparse.Namespace) -> int:
    """Delete and return the exit code."""
    # Imported here: `--help` must not wait for numpy.
    from blockdraft_drafter.learning.recordings import Recordings

    directory = folder(CONFIGURATION.read(args))
    count = Recordings(directory / "recordings", 0).clear()
    told = f"{directory}: {count} recordings deleted"
    if args.versions:
        # What names a version goes first: there must never be a name without one.
        (directory / "current.json").unlink(missing_ok=True)
        (directory / "journal.json").unlink(missing_ok=True)
        for name in ("versions", "candidate"):
            if (directory / name).exists():
                shutil.rmtree(directory / name)
        told += ", and the versions"
    print(told)
    return 0
