"""Progress of a download or of loading: a bar on a terminal, else lines of the log."""

import io
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[int, int], None]
"""Takes finished bytes and bytes in all."""

_SECONDS_BETWEEN_LINES = 5.0

logger = logging.getLogger(__name__)


@contextmanager
def show_progress(title: str, total: int | None = None) -> Iterator[Progress]:
    """Show bytes, of `total` if it is known beforehand, on stderr while the context is open.

    Where stderr is no terminal it logs a line every five seconds; shorter work is not mentioned.
    """
    if not sys.stderr.isatty():
        yield _LoggedProgress(title)
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        # A path may hold brackets, which would be taken for markup.
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with rich_progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda finished_bytes, total_bytes: bar.update(
            task, completed=finished_bytes, total=total_bytes
        )


class _LoggedProgress:
    """Logs the progress, a line every few seconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

    def __call__(self, finished_bytes: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + _SECONDS_BETWEEN_LINES
        logger.info("%s: %.0f of %.0f MB", self._title, finished_bytes / 1e6, total / 1e6)


def logged_bar(title: str) -> type | None:
    """Return the class of a tqdm bar that logs its bytes; None on a terminal, for tqdm's own."""
    if sys.stderr.isatty():
        return None
    from tqdm import tqdm

    progress = _LoggedProgress(title)

    class Bar(tqdm):  # type: ignore[misc]  # it has no types
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": False, "file": io.StringIO()})

        def display(self, *_: object, **__: object) -> None:
            if self.unit == "B" and self.total:
                progress(self.n, self.total)

    return Bar
