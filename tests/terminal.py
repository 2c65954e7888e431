"""A terminal whose screen a test sees."""

import fcntl
import os
import re
import struct
import termios
import threading
from types import TracebackType
from typing import Self

_PIECE = re.compile(r"(?P<up>\x1b\[A\x1b\[2K)|\x1b\[\d*m|(?P<end>\n)|(?P<text>[^\x1b\n\r]+)|\r")


class Terminal:
    """A pseudo-terminal; a narrower one breaks longer lines anew, as most do, or hides their ends.

    Attributes:
        file: What a program writes to.
    """

    def __init__(self, columns: int, *, breaks: bool = True) -> None:
        self._master, slave = os.openpty()
        self.file = os.fdopen(slave, "w")
        self._breaks = breaks
        self._lines = [""]
        self.resize(columns)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()
        self._reader.join()
        os.close(self._master)

    def resize(self, columns: int) -> None:
        """Become wider or narrower."""
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        self._columns = columns

    @property
    def lines(self) -> list[str]:
        """The lines on the screen."""
        return self._rows()[:-1]

    def _rows(self) -> list[str]:
        if not self._breaks:
            return [line[: self._columns] for line in self._lines]
        starts = [range(0, max(len(line), 1), self._columns) for line in self._lines]
        return [
            line[start : start + self._columns]
            for line, of_line in zip(self._lines, starts, strict=True)
            for start in of_line
        ]

    def _read(self) -> None:
        while True:
            try:
                text = os.read(self._master, 1 << 16).decode()
            except OSError:  # the other end is closed
                return
            for piece in _PIECE.finditer(text):
                if piece["up"]:
                    self._lines = [*self._rows()[:-2], ""]
                elif piece["end"]:
                    self._lines.append("")
                elif piece["text"]:
                    self._lines[-1] += piece["text"]
