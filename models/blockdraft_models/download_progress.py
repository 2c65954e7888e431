"""A progress bar on stderr, where there is somebody to see it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def show_progress(title: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Shows a download bar on stderr while the context is open.

    Args:
        title: What is being fetched.
        total: Its size in bytes.

    Yields:
        A callback taking bytes done and bytes in all; it does nothing if stderr is no terminal.
    """
    if not sys.stderr.isatty():
        yield lambda done, whole: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)
