"""Peers as a picture: the speed of each, and its ratio to ours."""

from matplotlib.figure import Figure

from blockdraft_bench.common.figure import error_bars, panels
from blockdraft_bench.peers.answers import BLOCKDRAFT
from blockdraft_bench.peers.report import PeersReport


def draw(report: PeersReport) -> Figure:
    """Draw both panels, our own decoders in a colour of their own."""
    rows = report.results
    figure, [speeds, ratios] = panels(2, size=(5.0, 1.5 + 0.45 * len(rows)), sharey=True)
    names = [f"{row.peer} {row.variant} ({row.dtype})" for row in rows]
    colours = ["C0" if row.peer == BLOCKDRAFT else "C1" for row in rows]
    bars = speeds.barh(names, [row.tokens_per_second or 0.0 for row in rows], color=colours)
    speeds.bar_label(bars, fmt="%.1f", padding=3)
    speeds.margins(x=0.15)
    speeds.set_xlabel("decoded tokens per second")
    speeds.invert_yaxis()
    estimates = [row.ratio_to_plain for row in rows]
    values = [estimate.value or 0.0 for estimate in estimates]
    ratios.barh(names, values, color=colours, xerr=error_bars(estimates), capsize=3)
    ratios.axvline(1.0, color="grey", linewidth=0.8)
    ratios.set_xlabel("speed over that of blockdraft plain")
    return figure
