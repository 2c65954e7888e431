"""`blockdraft learn`: let a drafter learn while it serves, and look after its versions."""

import argparse
import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from blockdraft_drafter.learning.versions import Version, VersionStore
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_training.command import (
    Subcommand,
    add_json,
    add_subcommands,
    run_subcommand,
)
from blockdraft_training.online.journal import Journal
from blockdraft_training.online.run import CONFIGURATION, run_learner
from blockdraft_training.online.settings import FolderSettings

# Heavy modules are imported where they are used: `--help` must not wait for jax or numpy.

_LIST = Configuration("learn list", FolderSettings)
_PROMOTE = Configuration("learn promote", FolderSettings)
_ROLLBACK = Configuration("learn rollback", FolderSettings)
_CLEAR = Configuration("learn clear", FolderSettings)


def _folder(configuration: Configuration[FolderSettings], args: argparse.Namespace) -> Path:
    """Return the named folder, or that of the target; `ModelError` if the target is not found."""
    settings = configuration.read(args)
    if settings.directory is not None:
        return settings.directory
    from blockdraft_models.weights.loading import load_checkpoint_config
    from blockdraft_models.weights.resolve import resolve_target

    target = load_checkpoint_config(resolve_target(settings.target))
    return settings.directory_for(target.fingerprint)


def _list(args: argparse.Namespace) -> int:
    from blockdraft_drafter.learning.samples import SampleStore

    directory = _folder(_LIST, args)
    store = VersionStore(directory)
    versions, current = store.list(), store.current()
    number = None if current is None else current.number
    samples = SampleStore(directory / "samples", 0)
    count, size = len(samples.names()), samples.size_bytes()
    journal = Journal.read(directory)
    if args.json:
        summary = {
            "directory": str(directory),
            "current": number,
            "versions": [asdict(version) for version in versions],
            "samples": {"count": count, "bytes": size},
            "learning": asdict(journal),
        }
        print(json.dumps(summary))
        return 0
    print(f"{directory}: {count} training samples, {size / 2**20:.1f} MiB")
    print(
        f"{journal.total_steps} steps of learning, {journal.steps} since the candidate began,"
        f" {journal.promoted} promoted, {journal.started_over} abandoned"
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


def _add_number(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", metavar="N", type=int, help="number of the version")


def _promote(args: argparse.Namespace) -> int:
    version = VersionStore(_folder(_PROMOTE, args)).promote(args.number, "by hand")
    print(f"version {version.number} serves")
    return 0


def _roll_back(args: argparse.Namespace) -> int:
    version = VersionStore(_folder(_ROLLBACK, args)).roll_back("by hand")
    print(f"version {version.number} serves")
    return 0


def _add_versions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--versions", action="store_true", help="delete the versions and the candidate too"
    )


def _clear(args: argparse.Namespace) -> int:
    from blockdraft_drafter.learning.samples import SampleStore

    directory = _folder(_CLEAR, args)
    count = SampleStore(directory / "samples", 0).clear()
    report = f"{directory}: {count} training samples deleted"
    if args.versions:
        (directory / "journal.json").unlink(missing_ok=True)
        for name in ("versions", "candidate"):
            if (directory / name).exists():
                shutil.rmtree(directory / name)
        report += ", and the versions"
    print(report)
    return 0


SUBCOMMANDS = {
    "run": Subcommand(
        "learn from training samples, until it is stopped", run_learner, CONFIGURATION
    ),
    "list": Subcommand("show the versions and the progress of learning", _list, _LIST, add_json),
    "promote": Subcommand("let a version serve", _promote, _PROMOTE, _add_number),
    "rollback": Subcommand("return to the version before", _roll_back, _ROLLBACK),
    "clear": Subcommand("delete the training samples", _clear, _CLEAR, _add_versions),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    return run_subcommand("learn", args)
