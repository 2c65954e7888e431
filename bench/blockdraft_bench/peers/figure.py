"""Peers as a picture: the speed of each, and how much faster our drafted decoding is."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockdraft_bench.common.figure import panels
from blockdraft_bench.peers.answers import BLOCKDRAFT
from blockdraft_bench.peers.report import PeerRow, PeersReport, Spread


def draw(report: PeersReport) -> Figure:
    """Draw both panels."""
    rows = report.results
    figure, [speeds, ratios] = panels(2, size=(5.0, 1.5 + 0.45 * len(rows)), sharey=True)
    draw_bars(speeds, rows, lambda row: row.tokens_per_second)
    speeds.set_xlabel("decoded tokens per second")
    speeds.set_yticks(range(len(rows)), [str(row) for row in rows])
    draw_ratios(ratios, rows)
    return figure


def draw_ratios(axes: Axes, rows: Sequence[PeerRow]) -> None:
    """Draw the speed of our drafted decoding over that of each."""
    draw_bars(axes, rows, lambda row: row.drafted_ratio)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("speed of blockdraft drafted over its own")


def draw_bars(
    axes: Axes, rows: Sequence[PeerRow], number: Callable[[PeerRow], Spread | None]
) -> None:
    """Draw medians from top to bottom with their quartiles, our own in a colour of their own."""
    known = [(place, row, s) for place, row in enumerate(rows) if (s := number(row)) is not None]
    medians = [spread.median for _, _, spread in known]
    axes.barh(
        [place for place, _, _ in known],
        medians,
        color=["C0" if row.peer == BLOCKDRAFT else "C1" for _, row, _ in known],
        xerr=[
            [median - s.quartiles[0] for median, (_, _, s) in zip(medians, known, strict=True)],
            [s.quartiles[1] - median for median, (_, _, s) in zip(medians, known, strict=True)],
        ],
        capsize=3,
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
