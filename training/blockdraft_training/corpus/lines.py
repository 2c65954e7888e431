"""Text files of whole lines: read one by one, and written so that no half line stays."""

import fcntl
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from blockdraft_training.errors import CorpusError

Item = TypeVar("Item")

_NEWLINE = b"\n"
_SCAN_BYTES = 1 << 16


def read_lines(path: Path, parse: Callable[[bytes], Item]) -> Iterator[Item]:
    """Yield the value of each line of a file; `parse` raises a ValueError for a damaged one.

    A name that ends in .gz or .xz says how the file is compressed. An unreadable file and a damaged
    line are a `CorpusError` that names the line.
    """
    number = 0
    try:
        with _opened(path) as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007, the handlers name it
                yield parse(line)
    except FileNotFoundError:
        raise CorpusError(f"{path} does not exist") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise CorpusError(f"{path} cannot be read after line {number}: {error}") from error
    except ValueError as error:
        raise CorpusError(f"{path}, line {number}: {error}") from error
    except RecursionError as error:
        raise CorpusError(f"{path}, line {number}: it is nested too deep") from error


def _opened(path: Path) -> AbstractContextManager[Iterable[bytes]]:
    match path.suffix:
        case ".gz":
            return gzip.open(path)
        case ".xz":
            return lzma.open(path)
        case _:
            return path.open("rb")


class LineFile(AbstractContextManager["LineFile"]):
    """Appends whole lines to a file, which it locks; a context manager.

    A killed writer leaves at most one line without its newline, and the next writer drops it. A
    line that does not fit onto the disk is removed again.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, made if needed, and drop a line that was cut short."""
        self.path = path
        # Unbuffered: a line that was appended is the system's, not lost with the process.
        self._file = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._size = self._end_of_last_line()
            self._file.truncate(self._size)
        except BlockingIOError as error:
            self._file.close()
            raise CorpusError(f"{path} is being written by another process") from error

    def __exit__(self, *exception: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file and let others write it."""
        self._file.close()

    def append(self, line: str) -> None:
        """Append one line, given without its newline; where it fails, the lines before stay."""
        rest = memoryview(line.encode() + _NEWLINE)
        size = len(rest)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._file.truncate(self._size)
            raise CorpusError(
                f"cannot write {self.path}: {error}; what was written before is intact, and the"
                " same command goes on from there"
            ) from error
        self._size += size

    def _end_of_last_line(self) -> int:
        """Return the file's size up to and including its last newline, read from the end."""
        end = self._file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _SCAN_BYTES)
            self._file.seek(start)
            last = self._file.read(end - start).rfind(_NEWLINE)
            if last >= 0:
                return start + last + 1
            end = start
        return 0
