"""Versions on trial: a version that crashes or hangs the drafter must not do so for ever.

The state is kept as marks, empty files in a version's folder. `served` says that the version has
drafted for a while. `trial-…` exists while a process tries a version, and is locked by that
process. The kernel frees the lock of a process that dies, so a mark without a lock stands for a
death, even if other processes try the version at that moment, on this host or on another one.
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

# A version with so many verified drafts has served: that is a few completions after its loading.
ENOUGH_DRAFTS = 64
# A process may be killed for another reason during a trial, but hardly twice in a row.
MOST_DEATHS = 2

_SERVED = "served"
_TRIAL = "trial-"


class Trial:
    """This process's trial of a version, until its end or the end of the process."""

    def __init__(self, mark: Path | None = None, lock: int | None = None) -> None:
        """Hold a mark, and the descriptor that locks it; none if the version is not marked."""
        self._mark, self._lock = mark, lock

    def end(self) -> None:
        """Remove the mark: if the process dies now, the version is not to blame."""
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

    It is tried even if the mark cannot be written. Raises VersionError if too many processes have
    died while they tried it.
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
    """Mark that a version has drafted for a while; `OSError` if that cannot be written."""
    (folder / _SERVED).touch(mode=0o600)
    to_disk(folder)
    forget(folder)


def forget(folder: Path) -> None:
    """Forget the deaths while trying a version, so that it is tried again if it is promoted."""
    for mark in _dead(folder):
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)


def _mark(folder: Path) -> Trial:
    descriptor, name = tempfile.mkstemp(prefix=f".{_TRIAL}", dir=folder)
    scratch = Path(name)
    mark = folder / scratch.name.removeprefix(".")
    try:
        # Other processes see it under its new name, and then it must be locked already.
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
    """Return the marks of processes that have died."""
    dead = []
    for mark in folder.glob(f"{_TRIAL}*"):
        # A mark that is gone does not count, nor one whose process still holds the lock.
        with contextlib.suppress(OSError), mark.open() as file:
            # Shared, so that two processes that check do not take each other for the one on trial.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            dead.append(mark)
    return dead
