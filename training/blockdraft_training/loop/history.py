"""The record of a run: one JSON object a line, one line a reading of the metrics."""

import json
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


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        return None  # a line cut by the interruption
    return entry
