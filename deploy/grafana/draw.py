"""Draws the dashboards from the values of a Prometheus, without Grafana.

    python deploy/grafana/draw.py http://localhost:9090 FOLDER --minutes 5

writes FOLDER/service.png and so on. Needs matplotlib.
"""

import argparse
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).parent
_POINTS = 150
_LEGEND_ENTRIES = 12
_LEGEND_COLUMNS = 3
# Share of the height of axes that a row of a legend takes.
_LEGEND_ROW = 0.07
_SHORTEST_STEP_SECONDS = 1.0
_SHORTEST_RATE_SECONDS = 10
_UNITS = {
    "s": "seconds",
    "bytes": "bytes",
    "percentunit": "share",
    "reqps": "per second",
    "percent": "%",
}


@dataclass(frozen=True)
class Window:
    """The time that is drawn, in seconds since 1970, and the Prometheus that knows its values."""

    address: str
    start: float
    end: float

    def series(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of a panel's query, with values over time."""
        seconds = self.end - self.start
        rate = max(_SHORTEST_RATE_SECONDS, int(seconds) // 6)
        query = expression.replace("$__rate_interval", f"{rate}s").replace("$instance", ".*")
        step = max(_SHORTEST_STEP_SECONDS, seconds / _POINTS)
        fields = {"query": query, "start": self.start, "end": self.end, "step": step}
        url = f"{self.address.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(fields)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return list(json.load(response)["data"]["result"])


def panels_of(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def draw(dashboard: dict[str, Any], window: Window, path: Path) -> int:
    """Draw a dashboard, as Grafana imports it; return the number of its panels with data."""
    panels = panels_of(dashboard)
    heights = sorted({panel["gridPos"]["y"] for panel in panels})
    rows = len(heights)
    figure = plt.figure(figsize=(16, 3.2 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 24)
    filled = 0
    for panel in panels:
        place = panel["gridPos"]
        columns = slice(place["x"], place["x"] + place["w"])
        axes = figure.add_subplot(grid[heights.index(place["y"]), columns])
        filled += _draw_panel(axes, panel, window)
    figure.suptitle(dashboard["title"])
    figure.savefig(path, dpi=70)
    plt.close(figure)
    return filled


def _draw_panel(axes: Axes, panel: dict[str, Any], window: Window) -> bool:
    defaults = panel["fieldConfig"]["defaults"]
    finite_values: list[float] = []
    for target in panel["targets"]:
        for series in window.series(target["expr"]):
            times = [point[0] - window.start for point in series["values"]]
            values = [float(point[1]) for point in series["values"]]
            axes.plot(
                times,
                values,
                marker="." if len(times) < 5 else None,
                label=_legend(target["legendFormat"], series["metric"]),
            )
            finite_values += filter(math.isfinite, values)
    axes.set_title(f"{panel['title']} ({_UNITS.get(defaults['unit'], 'number')})", fontsize=9)
    axes.set_xlim(0, window.end - window.start)
    axes.tick_params(labelsize=7)
    if not finite_values:
        axes.text(0.5, 0.5, defaults["noValue"], transform=axes.transAxes, ha="center")
        return False
    handles, labels = axes.get_legend_handles_labels()
    shown = handles[:_LEGEND_ENTRIES] if any(labels) else []
    # Above the values, which it would hide.
    room = 1.1 + _LEGEND_ROW * math.ceil(len(shown) / _LEGEND_COLUMNS)
    axes.set_ylim(1.1 * min(*finite_values, 0), room * max(finite_values) or 1)
    if steps := defaults.get("thresholds", {}).get("steps"):
        axes.axhline(steps[-1]["value"], color="red", linewidth=0.8, linestyle="--")
    if shown:
        legend = axes.legend(
            handles=shown, fontsize=6, loc="upper left", ncols=_LEGEND_COLUMNS, frameon=False
        )
        legend.set_in_layout(False)
    return True


def _legend(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda name: labels.get(name[1], ""), form).strip()


def main() -> int:
    """Draw all dashboards."""
    parser = argparse.ArgumentParser(description="Draw the dashboards from a Prometheus.")
    parser.add_argument("address", help="of the Prometheus, such as http://localhost:9090")
    parser.add_argument("folder", type=Path, help="where the images go")
    parser.add_argument("--minutes", type=float, default=5.0, help="how far back (default: 5)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    window = Window(args.address, now - 60 * args.minutes, now)
    for source in sorted(HERE.glob("*.json")):
        dashboard = json.loads(source.read_text(encoding="utf-8"))
        path = args.folder / f"{source.stem}.png"
        filled = draw(dashboard, window, path)
        print(f"{path}: {filled} of {len(panels_of(dashboard))} panels have data")
    return 0


if __name__ == "__main__":
    sys.exit(main())
