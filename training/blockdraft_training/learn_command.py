"""`blockdraft learn`: let a drafter learn while it serves, and look after its versions."""

import argparse
import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from blockdraft_drafter.learning.journal import Journal
from blockdraft_drafter.learning.versions import Version, VersionStore
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_training.command import Subcommand, add_subcommands, run_subcommand
from blockdraft_training.online.run import CONFIGURATION, run_learner
from blockdraft_training.online.settings import FolderSettings

# What follows is imported where it is used: `--help` must not wait for jax or numpy.

_LIST = Configuration("learn list", FolderSettings)
_PROMOTE = Configuration("learn promote", FolderSettings)
_ROLLBACK = Configuration("learn rollback", FolderSettings)
_CLEAR = Configuration("learn clear", FolderSettings)


def _folder(configuration: Configuration[FolderSettings], args: argparse.Namespace) -> Path:
    """Return the folder that is named, or that of the target; `ModelError` if there is none."""
    settings = configuration.read(args)
    if settings.directory is not None:
        return settings.directory
    from blockdraft_models.weights.loading import load_checkpoint_config
    from blockdraft_models.weights.resolve import resolve_target

    target = load_checkpoint_config(resolve_target(settings.target))
    return settings.directory_for(target.fingerprint)


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    _LIST.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _list(args: argparse.Namespace) -> int:
    from blockdraft_drafter.learning.samples import Recordings

    directory = _folder(_LIST, args)
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
    for version in versions:
        print(_line(version, current=version.number == number))
    return 0


def _line(version: Version, *, current: bool) -> str:
    made_at = time.strftime("%Y-%m-%d %H:%M", time.gmtime(version.made_at))
    tau = "   -" if version.held_out_tau is None else f"{version.held_out_tau:.2f}"
    line = (
        f"{'*' if current else ' '} {version.number:>4}  {made_at}  {version.kind:<11}"
        f"  {version.state:<11}  τ {tau}  {version.reason}"
    )
    return line.rstrip()


def _add_promote_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", metavar="N", type=int, help="number of the version")
    _PROMOTE.add_arguments(parser)


def _promote(args: argparse.Namespace) -> int:
    version = VersionStore(_folder(_PROMOTE, args)).promote(args.number, "by hand")
    print(f"version {version.number} serves")
    return 0


def _roll_back(args: argparse.Namespace) -> int:
    version = VersionStore(_folder(_ROLLBACK, args)).roll_back("by hand")
    print(f"version {version.number} serves")
    return 0


def _add_clear_arguments(parser: argparse.ArgumentParser) -> None:
    _CLEAR.add_arguments(parser)
    parser.add_argument(
        "--versions", action="store_true", help="delete the versions and the candidate too"
    )


def _clear(args: argparse.Namespace) -> int:
    from blockdraft_drafter.learning.samples import Recordings

    directory = _folder(_CLEAR, args)
    told = f"{directory}: {Recordings(directory / 'recordings', 0).clear()} recordings deleted"
    if args.versions:
        # What names a version goes first: there must never be a name without one.
        for file in ("current.json", "journal.json"):
            (directory / file).unlink(missing_ok=True)
        for name in ("versions", "candidate"):
            if (directory / name).exists():
                shutil.rmtree(directory / name)
        told += ", and the versions"
    print(told)
    return 0


SUBCOMMANDS = {
    "run": Subcommand(
        "learn from what is recorded, without an end",
        CONFIGURATION.add_arguments,
        run_learner,
        CONFIGURATION,
    ),
    "list": Subcommand(
        "show the versions, and how far learning is", _add_list_arguments, _list, _LIST
    ),
    "promote": Subcommand("let a version serve", _add_promote_arguments, _promote, _PROMOTE),
    "rollback": Subcommand(
        "return to the version before", _ROLLBACK.add_arguments, _roll_back, _ROLLBACK
    ),
    "clear": Subcommand("delete the recordings", _add_clear_arguments, _clear, _CLEAR),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    return run_subcommand("learn", args)
