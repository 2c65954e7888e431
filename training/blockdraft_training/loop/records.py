"""Readings of a run while it goes on, on disk and on the terminal."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from blockdraft_training.loop.held_out import Acceptance
from blockdraft_training.methods.objective import BlockMetrics

_SHOWN_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class Throughput:
    """Speed of a stretch of training."""

    positions_per_second: float  # drafted positions trained on
    tokens_per_second: float  # context tokens read, padding included


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of the steps since the last reading."""

    step: int  # steps made
    loss: float  # mean by position weight
    accuracy: tuple[float, ...]  # of each drafted position by itself
    acceptance_length: float  # expected τ at random anchors of the training batches
    seconds: float  # of training since this process began
    throughput: Throughput  # speed
    # Acceptance on held-out completions, where it was measured.
    validation: Acceptance | None = None

    @classmethod
    def of(
        cls, step: int, metrics: BlockMetrics, seconds: float, throughput: Throughput
    ) -> "Reading":
        """Read sums off the device."""
        correct, slots = np.asarray(metrics.correct), np.asarray(metrics.seen)
        return cls(
            step,
            float(metrics.loss) / max(float(metrics.weight), 1e-6),
            tuple(float(share) for share in correct / np.maximum(slots, 1)),
            float(metrics.gained) / max(float(metrics.blocks), 1),
            seconds,
            throughput,
        )

    def line(self, steps: int) -> str:
        """Return the reading as a line of text; `steps` are those of the whole run."""
        accuracy = " ".join(f"{share:.2f}" for share in self.accuracy[:_SHOWN_POSITIONS])
        speed, left = self.throughput, (steps - self.step) / self.step * self.seconds
        line = (
            f"step {self.step}/{steps}  loss {self.loss:.3f}"
            f"  τ {self.acceptance_length:.2f}  accuracy {accuracy}"
            f"  {speed.positions_per_second:,.0f} positions/s"
            f"  {speed.tokens_per_second:,.0f} tokens/s  {left / 60:.0f} min left"
        )
        if self.validation is not None:
            by_source = " ".join(f"{k} {v:.2f}" for k, v in self.validation.by_source.items())
            line += f"  held out τ {self.validation.acceptance_length:.2f} ({by_source})"
        return line


class History:
    """The readings of a run, one JSON object a line, on disk and in memory."""

    def __init__(self, directory: Path, step: int) -> None:
        """Open the history as it was at `step`: what an interrupted run did after is dropped."""
        self._path = directory / "history.jsonl"
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        entries = [entry for entry in map(_parse, lines) if entry and entry["step"] <= step]
        self.entries: list[dict[str, Any]] = entries
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        self._path.write_text(text, encoding="utf-8")

    def add(self, reading: Reading) -> None:
        """Append a reading."""
        entry = asdict(reading)
        self.entries.append(entry)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def plot_history(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw loss and acceptance length over steps into a PNG file."""
    # Imported here: it takes a second, and most readers of a history draw nothing.
    import matplotlib

    matplotlib.use("Agg")  # no display where training runs
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    steps = [entry["step"] for entry in entries]
    left.plot(steps, [entry["loss"] for entry in entries])
    left.set(xlabel="step", ylabel="loss", title="Weighted cross-entropy")
    expected = [entry["acceptance_length"] for entry in entries]
    right.plot(steps, expected, label="expected on training blocks")
    validated = [entry for entry in entries if entry["validation"]]
    right.plot(
        [entry["step"] for entry in validated],
        [entry["validation"]["acceptance_length"] for entry in validated],
        marker="o",
        label="held-out completions",
    )
    right.set(xlabel="step", ylabel="acceptance length τ", title="Acceptance")
    right.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


@dataclass(frozen=True, slots=True)
class Reporter:
    """The progress reports of a run."""

    # Called with the finished and the total tokens while features are computed.
    features: Callable[[int, int], None]
    reading: Callable[[Reading, int], None]  # called with each reading and the total steps


@contextlib.contextmanager
def progress_reporter() -> Iterator[Reporter]:
    """Yield a reporter that draws on stderr; without a terminal it prints lines only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def show(name: str, count: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=count, total=total)

        def reading(reading: Reading, steps: int) -> None:
            show("training", reading.step, steps)
            console.print(reading.line(steps), highlight=False)

        yield Reporter(partial(show, "features"), reading)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        return None  # a line cut by the interruption
    return entry
