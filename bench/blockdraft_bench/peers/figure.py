"""Peers as a picture: the speed of each, and its ratio to ours."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from blockdraft_bench.acceptance.figure import error_bars
from blockdraft_bench.peers.answers import Variant
from blockdraft_bench.peers.speeds import PeerResult


def draw_peers(results: Sequence[PeerResult], ours: Sequence[Variant], path: Path) -> None:
    """Write a PNG.

    Args:
        results: One for each decoder.
        ours: Which of them are this project's.
        path: Where to.
    """
    figure = Figure(figsize=(10, 1.5 + 0.45 * len(results)), layout="constrained")
    speeds, ratios = figure.subplots(1, 2, sharey=True)
    names = [str(result.variant) for result in results]
    colours = ["C0" if result.variant in ours else "C1" for result in results]
    bars = speeds.barh(names, [r.tokens_per_second or 0.0 for r in results], color=colours)
    speeds.bar_label(bars, fmt="%.1f", padding=3)
    speeds.margins(x=0.15)
    speeds.set_xlabel("decoded tokens per second")
    speeds.invert_yaxis()
    estimates = [result.ratio_to_plain for result in results]
    values = [estimate.value or 0.0 for estimate in estimates]
    ratios.barh(names, values, color=colours, xerr=error_bars(estimates), capsize=3)
    ratios.axvline(1.0, color="grey", linewidth=0.8)
    ratios.set_xlabel("speed over that of blockdraft plain")
    figure.savefig(path, dpi=150)
