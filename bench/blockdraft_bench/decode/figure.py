"""Decoding speed as a picture: the speed-up of each method by dataset."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from blockdraft_bench.acceptance.figure import BAR_SPACE, error_bars
from blockdraft_bench.common.timed_answers import PLAIN
from blockdraft_bench.decode.speed import MethodSpeed

HATCHES = ("", "//", "..", "xx")


def draw_speedups(results: Sequence[MethodSpeed], path: Path) -> None:
    """Write a PNG: a colour for each method, a hatching for each temperature.

    Args:
        results: One for each dataset, temperature and method; bars are drawn for those that draft.
        path: Where to.
    """
    datasets = list(dict.fromkeys(r.dataset for r in results))
    methods = [m for m in dict.fromkeys(r.method for r in results) if m != PLAIN]
    temperatures = list(dict.fromkeys(r.temperature for r in results))
    figure = Figure(figsize=(3 + 1.1 * len(datasets), 4.5), layout="constrained")
    axes = figure.subplots()
    groups = [(method, temperature) for method in methods for temperature in temperatures]
    width = BAR_SPACE / max(1, len(groups))
    for index, (method, temperature) in enumerate(groups):
        chosen = [r for r in results if (r.method, r.temperature) == (method, temperature)]
        shift = (index - (len(groups) - 1) / 2) * width
        axes.bar(
            [datasets.index(r.dataset) + shift for r in chosen],
            [r.speedup.value or 0.0 for r in chosen],
            width,
            yerr=error_bars([r.speedup for r in chosen]),
            capsize=3,
            color=f"C{methods.index(method)}",
            edgecolor="white",
            hatch=HATCHES[temperatures.index(temperature) % len(HATCHES)],
            label=f"{method}, T = {temperature:g}",
        )
    axes.axhline(1.0, color="grey", linewidth=0.8, label="plain decoding")
    axes.set_xticks(range(len(datasets)), datasets, rotation=45, ha="right")
    axes.set_ylabel("speed-up over plain decoding")
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    figure.savefig(path, dpi=150)
