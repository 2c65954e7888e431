"""What files say, read again when they change."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class UnusableFilesError(ValueError):
    """Files of keys or of a certificate cannot be used."""


class Reloaded(Generic[T]):
    """A value made of files. As long as they cannot be used, it stays what it was.

    Attributes:
        value: What they said when they could last be read.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the files.

        Args:
            what: What they hold, in words for messages.
            paths: Where they are; symbolic links are followed.
            read: Makes the value of them; raises OSError or ValueError if that is not possible.

        Raises:
            UnusableFilesError: If they cannot be used.
        """
        self._what = what
        self._paths = tuple(paths)
        self._read = read
        self._seen = self._state()
        self.value = self._value()

    def refresh(self) -> bool:
        """Read the files if they have changed; return whether there is a new value."""
        state = self._state()
        if state == self._seen:
            return False
        # First: what changes while they are read is a change for the next time.
        self._seen = state
        try:
            self.value = self._value()
        except UnusableFilesError as error:
            logger.error("%s; what was read before stays in force", error)
            return False
        logger.info("%s: read again", self._what)
        return True

    async def keep_current(self, seconds: float, on_change: Callable[[], None]) -> None:
        """Look at the files every so many seconds, for ever; tell of each new value."""
        while True:
            await asyncio.sleep(seconds)
            try:
                if await asyncio.to_thread(self.refresh):
                    on_change()
            except Exception:
                # A look must never end the looking.
                logger.exception("%s: could not look for changes", self._what)

    def _value(self) -> T:
        try:
            return self._read()
        except (OSError, ValueError) as error:
            raise UnusableFilesError(f"{self._what}: {error}") from error

    def _state(self) -> tuple[object, ...]:
        """Return what is different after every change of the files."""
        states: list[object] = []
        for path in self._paths:
            try:
                found = path.stat()
            except OSError as error:
                states.append(error.errno)
            else:
                states.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        return tuple(states)
