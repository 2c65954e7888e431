"""What a run tells while it goes on, and how a terminal shows it.

Loss, accuracy by position, expected τ, speed and time left.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from blockdraft_training.loop.history import Reading

_SHOWN_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class Reporter:
    """What a run tells while it goes on.

    Attributes:
        features: Called with tokens done and in all while features are computed.
        reading: Called with each reading and the steps in all.
    """

    features: Callable[[int, int], None]
    reading: Callable[[Reading, int], None]


@contextlib.contextmanager
def progress_reporter() -> Iterator[Reporter]:
    """Yield a reporter that draws on stderr; without a terminal it prints lines only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=done, total=total)

        def features(done: int, total: int) -> None:
            show("features", done, total)

        def reading(reading: Reading, steps: int) -> None:
            show("training", reading.step, steps)
            console.print(_line(reading, steps), highlight=False)

        yield Reporter(features, reading)


def _line(reading: Reading, steps: int) -> str:
    accuracy = " ".join(f"{share:.2f}" for share in reading.accuracy[:_SHOWN_POSITIONS])
    line = (
        f"step {reading.step}/{steps}  loss {reading.loss:.3f}"
        f"  τ {reading.acceptance_length:.2f}  accuracy {accuracy}"
    )
    if reading.throughput is not None:
        speed = reading.throughput
        left = (steps - reading.step) / reading.step * reading.seconds
        line += (
            f"  {speed.positions_per_second:,.0f} positions/s"
            f"  {speed.tokens_per_second:,.0f} tokens/s"
            f"  {speed.peak_share:.0%} of matmul peak  {left / 60:.0f} min left"
        )
    if reading.validation is not None:
        by_source = " ".join(f"{k} {v:.2f}" for k, v in reading.validation.by_source.items())
        line += f"  held out τ {reading.validation.acceptance_length:.2f} ({by_source})"
    return line
