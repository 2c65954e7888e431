"""Decoding speed as a picture: the speed-up of each method by dataset."""

from matplotlib.figure import Figure

from blockdraft_bench.common.answers import PLAIN
from blockdraft_bench.common.figure import grouped_bars, panels, plain_level
from blockdraft_bench.decode.report import DecodeReport

HATCHES = ("", "//", "..", "xx")


def draw(report: DecodeReport) -> Figure:
    """Draw a bar for each method that drafts: colours for methods, hatchings for temperatures."""
    results = report.results
    datasets = list(dict.fromkeys(row.dataset for row in results))
    methods = [m for m in dict.fromkeys(row.method for row in results) if m != PLAIN]
    temperatures = list(dict.fromkeys(row.temperature for row in results))
    groups = [(method, temperature) for method in methods for temperature in temperatures]
    figure, [axes] = panels(1, size=(3 + 1.1 * len(datasets), 4.5))
    grouped_bars(
        axes,
        datasets,
        {
            f"{method}, T = {temperature:g}": {
                row.dataset: row.speedup
                for row in results
                if (row.method, row.temperature) == (method, temperature)
            }
            for method, temperature in groups
        },
        color=[f"C{methods.index(method)}" for method, _ in groups],
        hatch=[HATCHES[temperatures.index(t) % len(HATCHES)] for _, t in groups],
        edgecolor=["white"] * len(groups),
    )
    plain_level(axes, "plain decoding")
    axes.set_ylabel("speed-up over plain decoding")
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    return figure
