"""The versions of a drafter that learns, in a folder that drafter, trainer and people share.

`versions/000001/` is an exported drafter with a record, `version.json`. The promoted version with
the highest `turn` serves. Adding a version renames a folder, every other change replaces one
record: a process that dies in between leaves the old store or the new one.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from blockdraft_drafter.learning.records import SCRATCH, read_record, to_disk, write_record

VersionKind = Literal["shipped", "learned", "initialized"]
State = Literal["candidate", "promoted", "rejected", "rolled_back"]

_NAME = re.compile(r"\d{6,}")
_DOOMED = ".old-"
# The versions promoted last are not pruned, and can be rolled back to.
_REMEMBERED = 8


class VersionError(ValueError):
    """A version does not exist, is damaged, or cannot do what was asked for."""


@dataclass(frozen=True, slots=True)
class Version:
    """The record of a version."""

    number: int  # from 1
    # Source of its weights: a drafter that the settings name, learning, or the target's own layers.
    kind: VersionKind
    fingerprint: str  # of the drafter's configuration and weights
    made_at: float  # seconds since 1970
    parent: int | None = None  # the version from whose weights it was learned; None for none
    base: int | None = None  # its first ancestor, which was not learned; None for itself
    state: State = "candidate"  # what became of it
    turn: int = 0  # place in the order of promotions, from 1; 0 if it was never promoted
    loads: bool = False  # whether a process has loaded it and lived
    held_out_tau: float | None = None  # τ on held-out samples; None if it was not measured
    parent_held_out_tau: float | None = None  # that of its parent on the same ones
    confidence: float | None = None  # with which it is better than its parent there, 0 to 1
    reason: str = ""  # why it is in this state, in words


class VersionStore:
    """The versions in one folder. Several processes may change it; they take turns."""

    def __init__(self, directory: Path) -> None:
        """Use a folder, which is made with the first version."""
        self.directory = directory
        self._versions = directory / "versions"

    def path(self, number: int) -> Path:
        """Return the folder of a version's checkpoint."""
        return self._versions / f"{number:06d}"

    def list(self) -> Sequence[Version]:
        """Return the readable versions, oldest first."""
        versions = []
        for number in self._numbers():
            with contextlib.suppress(VersionError):
                versions.append(self.read(number))
        return versions

    def read(self, number: int) -> Version:
        """Return the record of a version; `VersionError` if it is missing or damaged."""
        path = self.path(number) / "version.json"
        try:
            version = read_record(path, Version)
        except (OSError, ValueError) as error:
            raise VersionError(f"version {number} cannot be read: {error}") from error
        if version.number != number:
            raise VersionError(f"{path} is of version {version.number}")
        return version

    def current(self) -> Version | None:
        """Return the version that shall serve; None if none was promoted."""
        return next(iter(self.promoted()), None)

    def promoted(self) -> Sequence[Version]:
        """Return the promoted versions, the one that shall serve first."""
        promoted = [version for version in self.list() if version.state == "promoted"]
        return sorted(promoted, key=lambda version: -version.turn)

    def initialized(self) -> Version | None:
        """Return the newest drafter made of the target's layers that was not rejected, or None."""
        versions = [version for version in self.list() if version.kind == "initialized"]
        return next((v for v in reversed(versions) if v.state != "rejected"), None)

    def base(self, version: Version) -> Version | None:
        """Return the first ancestor of a version, or itself; None if it cannot be read."""
        if version.base is None:
            return version
        with contextlib.suppress(VersionError):
            return self.read(version.base)
        return None

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
        base = parent
        if parent is not None:
            with contextlib.suppress(VersionError):
                base = self.read(parent).base or parent
        about = {"kind": kind, "fingerprint": fingerprint, "parent": parent, "base": base, **fields}
        with self._locked():
            return self._add(write_checkpoint, about)

    def settle(self, fingerprint: str, write_checkpoint: Callable[[Path], object]) -> Version:
        """Return the version to serve with, given the drafter that the settings name.

        It is the promoted version if that was learned from this drafter; otherwise the drafter
        itself, which is added as a version if it is not one yet, to be rolled back to.
        """
        with self._locked():
            current = self.current()
            base = None if current is None else self.base(current)
            if current is not None and base is not None and base.fingerprint == fingerprint:
                return current
            firsts = (version for version in self.list() if version.kind != "learned")
            version = next((v for v in firsts if v.fingerprint == fingerprint), None)
            if version is None:
                about = {"kind": "shipped", "fingerprint": fingerprint}
                version = self._add(write_checkpoint, about)
            return self._promote(version.number, "named by --drafter")

    def promote(self, number: int, reason: str = "") -> Version:
        """Let a version serve from now on; after any error the one before goes on serving."""
        with self._locked():
            return self._promote(number, reason)

    def reject(self, number: int, reason: str) -> Version:
        """Reject a version; if it is the current one, the one before it serves again."""
        with self._locked():
            return self._change(number, state="rejected", reason=reason)

    def mark_loaded(self, number: int) -> Version:
        """Record that a process has loaded a version and lived."""
        with self._locked():
            return self._change(number, loads=True)

    def roll_back(self, reason: str) -> Version:
        """Go back to the promoted version that served before the current one; return it.

        `VersionError` if there is none.
        """
        with self._locked():
            current, before = (*self.promoted(), None, None)[:2]
            if current is None:
                raise VersionError("no version was promoted")
            if before is None:
                raise VersionError(f"there is none to return to from version {current.number}")
            self._change(current.number, state="rolled_back", reason=reason)
        return before

    def prune(self, keep: int) -> Sequence[int]:
        """Delete old versions; return their numbers.

        Kept are the newest, at least one, so that no number is given twice; those promoted last;
        and all that were not learned, to be rolled back to.
        """
        with self._locked():
            numbers, promoted = self._numbers(), self.promoted()[:_REMEMBERED]
            needed = {*numbers[-max(keep, 1) :], *(version.number for version in promoted)}
            needed |= {version.number for version in self.list() if version.kind != "learned"}
            doomed = [number for number in numbers if number not in needed]
            for number in doomed:
                # Renamed first: what is half deleted must not look like a version.
                path = self._versions / f"{_DOOMED}{number:06d}"
                self.path(number).rename(path)
                shutil.rmtree(path)
        return doomed

    def _add(self, write_checkpoint: Callable[[Path], object], about: dict[str, Any]) -> Version:
        number = max(self._numbers(), default=0) + 1
        version = Version(number, made_at=time.time(), **about)
        scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=self._versions))
        try:
            write_checkpoint(scratch)
            for path in scratch.iterdir():
                to_disk(path)
            write_record(scratch / "version.json", version)
            scratch.rename(self.path(number))
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        to_disk(self._versions)
        return version

    def _promote(self, number: int, reason: str) -> Version:
        turn = 1 + max((version.turn for version in self.list()), default=0)
        return self._change(number, state="promoted", turn=turn, reason=reason)

    def _change(self, number: int, **fields: Any) -> Version:
        version = replace(self.read(number), **fields)
        write_record(self.path(number) / "version.json", version)
        return version

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
                if name.startswith((SCRATCH, _DOOMED)):
                    shutil.rmtree(self._versions / name, ignore_errors=True)
            yield


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copy a drafter's files into a folder."""
    for file in [*source.glob("*.safetensors"), *source.glob("*.json")]:
        shutil.copyfile(file, folder / file.name)
