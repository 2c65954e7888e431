"""The versions of a drafter that learns, in a folder that drafter, trainer and people share.

`versions/000001/` is an exported drafter with a `version.json`; `current.json` names the version
that serves. Every change is made of steps each of which leaves a store that can be read: folders
appear by being renamed, small files by being replaced. A process that dies in between leaves either
the old store, or one that is as good as the new one:

* promoting marks the version first and names it then;
* rolling back marks the version as bad first, and a bad version is skipped wherever it is named.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

VersionKind = Literal["shipped", "learned", "initialized"]
State = Literal["candidate", "promoted", "rejected", "rolled_back"]

_NAME = re.compile(r"\d{6,}")
_SCRATCH = ".new-"
_DOOMED = ".old-"
# Most versions named in `current.json`: these are not pruned, and can be rolled back to.
_REMEMBERED = 8


class VersionError(ValueError):
    """A version does not exist, is damaged, or cannot do what was asked for."""


@dataclass(frozen=True, slots=True)
class Version:
    """The record of a version."""

    number: int  # from 1
    parent: int | None  # the version from whose weights it was learned; None for none
    made_at: float  # seconds since 1970
    # Source of its weights: a checkpoint that the settings name, learning, or the target's own
    # layers or chance.
    kind: VersionKind
    fingerprint: str  # of the drafter's configuration and weights
    state: State = "candidate"  # what became of it
    held_out_tau: float | None = None  # τ on held-out samples; None if it was not measured
    parent_held_out_tau: float | None = None  # that of its parent on the same ones
    confidence: float | None = None  # with which it is better than its parent there, 0 to 1
    reason: str = ""  # why it is in this state, in words

    @property
    def good(self) -> bool:
        """Whether it may serve: it was neither rejected nor rolled back."""
        return self.state in ("candidate", "promoted")


class VersionStore:
    """The versions in one folder. Several processes may change it; they take turns."""

    def __init__(self, directory: Path) -> None:
        """Use a folder, which is made with the first version."""
        self.directory = directory
        self._versions = directory / "versions"
        self._current = directory / "current.json"

    def path(self, number: int) -> Path:
        """Return the folder of a version's checkpoint."""
        return self._versions / f"{number:06d}"

    def list(self) -> Sequence[Version]:
        """Return the readable versions, oldest first."""
        return [*self._readable(self._numbers())][::-1]

    def read(self, number: int) -> Version:
        """Return the record of a version; `VersionError` if it is missing or damaged."""
        path = self.path(number) / "version.json"
        try:
            version = _from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise VersionError(f"version {number} cannot be read: {error}") from error
        if version.number != number:
            raise VersionError(f"{path} is of version {version.number}")
        return version

    def current(self) -> Version | None:
        """Return the version that shall serve; None if none was promoted."""
        return next(self.promoted(), None)

    def promoted(self) -> Iterator[Version]:
        """Yield the good versions that were promoted, the one that shall serve first."""
        return (version for version in self._readable(self._history()) if version.good)

    def base(self) -> Version | None:
        """Return the last version promoted that was not learned.

        The current version was learned from it, unless it is that version. None if nothing serves,
        or if the current version was learned from a drafter made of the target's layers, which is
        not promoted itself.
        """
        return self._base_of(self._history())

    def add(
        self,
        write_checkpoint: Callable[[Path], object],
        *,
        kind: VersionKind,
        fingerprint: str,
        parent: int | None = None,
        **fields: Any,
    ) -> Version:
        """Add a candidate with these fields of `Version`; after an `OSError` nothing of it stays.

        `write_checkpoint` writes a drafter's files into a folder that is there and empty.
        """
        with self._locked():
            number = max(self._numbers(), default=0) + 1
            version = Version(number, parent, time.time(), kind, fingerprint, **fields)
            scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self._versions))
            try:
                write_checkpoint(scratch)
                (scratch / "version.json").write_text(_to_json(version), encoding="utf-8")
                for path in [*scratch.iterdir(), scratch]:
                    to_disk(path)
                scratch.rename(self.path(number))
            except BaseException:
                shutil.rmtree(scratch, ignore_errors=True)
                raise
            to_disk(self._versions)
        return version

    def settle_base(
        self, fingerprint: str, write_checkpoint: Callable[[Path], object], *, trained: bool
    ) -> Version:
        """Return the version to serve with, given the drafter that the settings name.

        It is the promoted version if that was learned from this drafter; otherwise the drafter
        itself, which is added as a version if it is not one yet, to be rolled back to.
        """
        current, base, reason = self.current(), self.base(), "named by --drafter"
        if current is not None and base is not None and base.fingerprint == fingerprint:
            return current
        for version in self.list():
            if version.kind != "learned" and version.fingerprint == fingerprint:
                return self.promote(version.number, reason)
        kind: VersionKind = "shipped" if trained else "initialized"
        added = self.add(write_checkpoint, kind=kind, fingerprint=fingerprint, reason=reason)
        return self.promote(added.number, reason)

    def promote(self, number: int, reason: str = "") -> Version:
        """Let a version serve from now on; after any error the one before goes on serving."""
        with self._locked():
            before = self._history()
            version = self._mark(number, "promoted", reason)
            history = [*(previous for previous in before if previous != number), number]
            base = self._base_of(history)
            kept_numbers = history[-_REMEMBERED:]
            if base is not None and base.number not in kept_numbers:
                kept_numbers = [base.number, *kept_numbers]
            self._write_history(kept_numbers)
        return version

    def reject(self, number: int, reason: str) -> Version:
        """Reject a version; if it is the current one, the one before it serves again."""
        with self._locked():
            version = self._mark(number, "rejected", reason)
            self._forget_bad()
        return version

    def roll_back(self, reason: str) -> Version:
        """Go back to the good version that served before the current one; return it.

        `VersionError` if there is none.
        """
        with self._locked():
            current, before = (*self.promoted(), None, None)[:2]
            if current is None:
                raise VersionError("no version was promoted")
            if before is None:
                raise VersionError(f"there is none to return to from version {current.number}")
            self._mark(current.number, "rolled_back", reason)
            self._forget_bad()
        return before

    def prune(self, keep: int) -> Sequence[int]:
        """Delete old versions; return their numbers.

        Kept are the newest, at least one, so that no number is given twice; those that have served
        lately; and all that were not learned, to be rolled back to.
        """
        with self._locked():
            numbers = self._numbers()
            needed = {*self._history(), *numbers[-max(keep, 1) :]}
            needed |= {version.number for version in self.list() if version.kind != "learned"}
            doomed = [number for number in numbers if number not in needed]
            for number in doomed:
                # Renamed first: what is half deleted must not look like a version.
                path = self._versions / f"{_DOOMED}{number:06d}"
                self.path(number).rename(path)
                shutil.rmtree(path)
        return doomed

    def _base_of(self, history: Sequence[int]) -> Version | None:
        bases = (version for version in self._readable(history) if version.kind != "learned")
        return next(bases, None)

    def _readable(self, numbers: Sequence[int]) -> Iterator[Version]:
        """Yield the readable versions among these numbers, the last one first."""
        for number in reversed(numbers):
            try:
                yield self.read(number)
            except VersionError:
                continue

    def _mark(self, number: int, state: State, reason: str) -> Version:
        version = replace(self.read(number), state=state, reason=reason)
        _replace(self.path(number) / "version.json", _to_json(version))
        return version

    def _history(self) -> Sequence[int]:
        """Return the numbers of promoted versions, the current one last.

        If the file that names them is damaged, they are those marked as promoted, by number.
        """
        try:
            entry = json.loads(self._current.read_text(encoding="utf-8"))
            return [*(int(number) for number in entry["before"]), int(entry["version"])]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return [version.number for version in self.list() if version.state == "promoted"]

    def _write_history(self, history: Sequence[int]) -> None:
        *before, current = history
        text = json.dumps({"version": current, "before": before}, indent=2) + "\n"
        _replace(self._current, text)

    def _forget_bad(self) -> None:
        """Remove bad versions from `current.json`; they are skipped until then."""
        current, history = self.current(), self._history()
        if current is not None:
            self._write_history(history[: history.index(current.number) + 1])

    def _numbers(self) -> Sequence[int]:
        try:
            return sorted(int(name) for name in os.listdir(self._versions) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other writers out; the kernel frees the lock of a writer that dies.

        Folders that such a writer left half written or half deleted are removed first.
        """
        self._versions.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for name in os.listdir(self._versions):
                if name.startswith((_SCRATCH, _DOOMED)):
                    shutil.rmtree(self._versions / name, ignore_errors=True)
            yield


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copy a drafter's files into a folder."""
    for file in [*source.glob("*.safetensors"), *source.glob("*.json")]:
        shutil.copyfile(file, folder / file.name)


def _to_json(version: Version) -> str:
    return json.dumps(asdict(version), indent=2) + "\n"


def _from_json(entry: Any) -> Version:
    version = Version(**entry)
    measured = (version.held_out_tau, version.parent_held_out_tau, version.confidence)
    if (
        not isinstance(version.number, int)
        or version.kind not in get_args(VersionKind)
        or version.state not in get_args(State)
        or not all(value is None or math.isfinite(value) for value in measured)
    ):
        raise ValueError("values that no version has")
    return version


def _replace(path: Path, text: str) -> None:
    """Replace a small file: a reader sees the old or the new one, also after a power cut."""
    scratch = path.with_name(f"{_SCRATCH}{path.name}")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Make sure that a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
