"""The record of a run: readings of the metrics, one JSON object a line, and their curves."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blockdraft_training.loop.held_out import Acceptance
from blockdraft_training.loop.throughput import Throughput
from blockdraft_training.methods.objective import BlockMetrics


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of the steps since the last reading.

    Attributes:
        step: Steps made.
        loss: Mean by position weight.
        accuracy: Of each drafted position by itself.
        acceptance_length: Expected τ at random anchors of the training batches.
        seconds: Of training since this process began.
        throughput: Speed, or None for a reading that includes compilation.
        validation: Acceptance on held-out answers, where it was measured.
    """

    step: int
    loss: float
    accuracy: tuple[float, ...]
    acceptance_length: float
    seconds: float
    throughput: Throughput | None = None
    validation: Acceptance | None = None

    @classmethod
    def of(
        cls, step: int, metrics: BlockMetrics, seconds: float, throughput: Throughput | None
    ) -> "Reading":
        """Read sums off the device."""
        correct, seen = np.asarray(metrics.correct), np.asarray(metrics.seen)
        return cls(
            step,
            float(metrics.loss) / max(float(metrics.weight), 1e-6),
            tuple(float(share) for share in correct / np.maximum(seen, 1)),
            float(metrics.gained) / max(float(metrics.blocks), 1),
            seconds,
            throughput,
        )


class History:
    """The readings of a run, on disk and in memory."""

    def __init__(self, directory: Path, step: int) -> None:
        """Open the history as it was at `step`: what an interrupted run did after is dropped."""
        self._path = directory / "history.jsonl"
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        kept = [entry for entry in map(_parse, lines) if entry and entry["step"] <= step]
        self.entries: list[dict[str, Any]] = kept
        text = "".join(json.dumps(entry) + "\n" for entry in kept)
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
        label="held-out answers",
    )
    right.set(xlabel="step", ylabel="acceptance length τ", title="Acceptance")
    right.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        return None  # a line cut by the interruption
    return entry
