"""Versions on trial: one that kills or hangs the process that loads it must not do so for ever.

What is known are marks in a version's folder, empty files that are there or not. `served` says that
the version has drafted for a while. `trial-…` is there while a process tries a version, and locked
by that process. The kernel frees the lock of one that dies, so a mark that nobody locks is a death,
whoever else tries the version at that moment, on this host or on another one.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from blockdraft_drafter.learning.versions import VersionError, to_disk

logger = logging.getLogger(__name__)

# Verified drafts of a version that has served: a few answers, after what loading it can do.
ENOUGH_DRAFTS = 64
# A process may be killed for another reason just then; not twice in a row.
MOST_DEATHS = 2

_SERVED = "served"
_TRIAL = "trial-"


class Trial:
    """That this process tries a version, for as long as it lives or until the end of the trial."""

    def __init__(self, mark: Path | None = None, lock: int | None = None) -> None:
        """Hold a mark, and the descriptor that locks it; none if the version is not marked."""
        self._mark, self._lock = mark, lock

    def end(self) -> None:
        """Take the mark away: whatever becomes of the process now, the version is not to blame."""
        if self._mark is None or self._lock is None:
            return
        with contextlib.suppress(OSError):
            self._mark.unlink(missing_ok=True)
        os.close(self._lock)
        self._mark = self._lock = None


def has_served(folder: Path) -> bool:
    """Return whether the version in a folder has drafted for a while."""
    return (folder / _SERVED).exists()


def begin(folder: Path) -> Trial:
    """Mark a version as tried, unless it has served, before anything of it is loaded.

    A disk that takes no mark keeps nobody from trying it. Raises VersionError if too many processes
    have died while they tried it.
    """
    if has_served(folder):
        return Trial()
    deaths = len(_dead(folder))
    if deaths >= MOST_DEATHS:
        raise VersionError(f"{deaths} processes died while they tried it")
    try:
        return _mark(folder)
    except OSError as error:
        logger.warning("version %s is tried without a mark: %s", folder.name, error)
        return Trial()


def confirm(folder: Path) -> None:
    """Say that a version has drafted for a while; `OSError` if that cannot be written."""
    (folder / _SERVED).touch(mode=0o600)
    to_disk(folder)
    forget(folder)


def forget(folder: Path) -> None:
    """Forget who died while trying a version: who promotes it after all wants it tried again."""
    for mark in _dead(folder):
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)


def _mark(folder: Path) -> Trial:
    descriptor, name = tempfile.mkstemp(prefix=f".{_TRIAL}", dir=folder)
    scratch = Path(name)
    mark = folder / scratch.name.removeprefix(".")
    try:
        # Under this name it is seen, and then it must be locked already.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        scratch.rename(mark)
        to_disk(folder)
    except OSError:
        for path in (scratch, mark):
            path.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return Trial(mark, descriptor)


def _dead(folder: Path) -> Sequence[Path]:
    """Return the marks of processes that live no more."""
    dead = []
    for mark in folder.glob(f"{_TRIAL}*"):
        # What is gone is none, nor what its process holds.
        with contextlib.suppress(OSError), mark.open() as file:
            # Shared, so that two who look do not take each other for the one who tries.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            dead.append(mark)
    return dead
