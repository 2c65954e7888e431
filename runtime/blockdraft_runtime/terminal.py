"""Colours on a terminal, and rows that are written again and again."""

import os
import threading
from collections.abc import Sequence
from typing import TextIO


def colored(text: str, color: int) -> str:
    """Return text in a colour, given by the number that ANSI has for it, unless NO_COLOR is set."""
    return text if os.environ.get("NO_COLOR") else f"\x1b[{color}m{text}\x1b[0m"


class TerminalRows:
    """Rows below all else that is written; none where the file is no terminal."""

    def __init__(self, file: TextIO) -> None:
        """Show nothing yet; the cursor is at the beginning of a line."""
        self._file = file
        self._rows: list[str] = []
        self._lock = threading.Lock()

    def show(self, rows: Sequence[str]) -> None:
        """Write these rows in the place of the last; any thread may call this."""
        self._write("", rows)

    def print(self, line: str) -> None:
        """Write a line that stays above the rows."""
        self._write(f"{line}\n", None)

    def close(self) -> None:
        """Erase the rows."""
        self.show([])

    def _write(self, above: str, rows: Sequence[str] | None) -> None:
        with self._lock:
            columns = 0
            if self._file.isatty():
                columns = os.get_terminal_size(self._file.fileno()).columns or 80
            # A terminal that became narrower has broken each row that was longer.
            height = sum(-(-len(row) // columns) for row in self._rows)
            # Row by row: some terminals keep what is erased down to the end of the screen.
            erasure = "\x1b[A\x1b[2K" * height
            shown = self._rows if rows is None else rows
            self._rows = [row[: columns - 1] for row in shown if columns]
            self._file.write(erasure + above + "".join(f"{row}\n" for row in self._rows))
            self._file.flush()
