"""The curves of a run as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display where training runs

import matplotlib.pyplot as plt


def plot_history(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw loss and acceptance length over steps into a PNG file."""
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
