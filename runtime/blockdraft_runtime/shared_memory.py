"""Memory that two processes of one host share, by a file that only their user can open.

One process makes the file and sends its name to the other, which maps it too. Then the file is
unlinked: the memory is freed when neither process maps it any more, however they end.
"""

import mmap
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 1 << 30
"""Largest memory that is mapped for another process."""

# Metadata of a gRPC call, in both directions.
_NAME_KEY, _BYTES_KEY = "shared-memory", "shared-memory-bytes"
_MAPPED, _NOT_MAPPED = "mapped", "none"
MAPPED, NOT_MAPPED = ((_NAME_KEY, _MAPPED),), ((_NAME_KEY, _NOT_MAPPED),)
"""Initial metadata of an accepted call: whether the offered memory was mapped."""

Metadata = Iterable[tuple[str, str | bytes]]
_PREFIX = "shared-"
_NAME = re.compile(_PREFIX + "[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file for another process to map too."""

    path: Path  # where it is, until `unlink`
    memory: mmap.mmap  # its contents, to be written to

    @classmethod
    def create(cls, directory: Path, size: int) -> "SharedFile":
        """Make a file of `size` bytes with room for all of them.

        `OSError` if there is no room, or it cannot be made there.
        """
        path = directory / f"{_PREFIX}{secrets.token_hex(16)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, mode=0o600)
        try:
            os.ftruncate(descriptor, size)
            if sys.platform == "linux":
                # A hole in the file would end the process if there is no room to fill it.
                os.posix_fallocate(descriptor, 0, size)
            return cls(path, mmap.mmap(descriptor, size))
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)

    @property
    def offer(self) -> tuple[tuple[str, str], ...]:
        """Metadata of a call that offers this memory."""
        return (_NAME_KEY, self.path.name), (_BYTES_KEY, str(len(self.memory)))

    def unlink(self) -> None:
        """Remove the file's name; harmless if it is gone."""
        self.path.unlink(missing_ok=True)


def socket_folder(address: str) -> Path | None:
    """Return the folder of a unix socket's address, or None if it is no such address."""
    return Path(address.removeprefix("unix:")).parent if address.startswith("unix:") else None


def attach_offered(metadata: Metadata, directory: Path) -> mmap.mmap | None:
    """Map the memory that a call's metadata offers, for reading; None if there is no offer.

    `ValueError` if the name is none of a `SharedFile`, the size is out of bounds, or the file is
    not a private one of this user and of that size; `OSError` if it cannot be opened.
    """
    offer = dict(tuple(metadata))
    name, written = offer.get(_NAME_KEY), offer.get(_BYTES_KEY)
    if not isinstance(name, str) or not isinstance(written, str):
        return None
    if not written.isdecimal() or not 0 < int(written) <= MOST_BYTES:
        raise ValueError(f"shared memory of {written} bytes is not mapped")
    size = int(written)
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of shared memory")
    # Not blocking: opening a pipe would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(directory / name, flags)
    try:
        status = os.fstat(descriptor)
        private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
        if not private or status.st_uid != os.geteuid() or status.st_size != size:
            raise ValueError(f"{name} is not a private file of {size} bytes")
        return mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


def is_mapped(metadata: Metadata) -> bool | None:
    """Return whether initial metadata says that the offered memory is mapped; None if unsaid."""
    answer = dict(tuple(metadata)).get(_NAME_KEY)
    return answer == _MAPPED if answer in (_MAPPED, _NOT_MAPPED) else None
