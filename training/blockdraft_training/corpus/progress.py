"""How far a corpus is, on stderr."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

# Where nobody watches, a log should still grow slowly.
LOG_SECONDS = 60.0


@contextmanager
def show_answers(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show rows done, tokens per second and time left while the context is open.

    Args:
        title: What is being made.
        total: Rows to be made.

    Yields:
        A callback taking the number of tokens of a finished row.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    started = logged = time.monotonic()
    tokens = rows = 0
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=total, speed=0.0)

        def answered(count: int) -> None:
            nonlocal tokens, rows, logged
            tokens, rows, now = tokens + count, rows + 1, time.monotonic()
            speed = tokens / max(now - started, 1e-9)
            bar.update(task, advance=1, speed=speed)
            if not console.is_terminal and now - logged >= LOG_SECONDS:
                logged = now
                left = (now - started) * (total - rows) / rows
                console.print(
                    f"{title}: {rows} of {total} rows, {speed:.0f} tokens/s, {left:.0f} s left"
                )

        yield answered
