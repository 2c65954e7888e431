"""A report's figures: all panels together, and each as a file of its own."""

import math
from collections.abc import Sequence
from pathlib import Path

# Figures made without pyplot draw with Agg, on any machine and without global state.
from matplotlib.figure import Figure

from blockdraft_bench.report.inputs import Results
from blockdraft_bench.report.panels import Panel

COLUMNS = 3
PANEL_INCHES = (6.0, 4.5)


def draw_report(panels: Sequence[Panel], results: Results, folder: Path) -> None:
    """Write `report.png` and one PNG for each panel.

    Args:
        panels: At least one.
        results: What they show.
        folder: Where to.
    """
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    _draw(panels, results, rows, columns, folder / "report.png")
    for panel in panels:
        _draw([panel], results, 1, 1, folder / f"report-{panel.name}.png")


def _draw(panels: Sequence[Panel], results: Results, rows: int, columns: int, path: Path) -> None:
    width, height = PANEL_INCHES
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, axes in zip(panels, places, strict=False):
        panel.draw(axes, results)
        axes.set_title(panel.title)
    for unused in places[len(panels) :]:
        unused.set_axis_off()
    figure.savefig(path, dpi=150)
