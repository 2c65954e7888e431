"""Other programs in a report: their speeds on the same prompts are drawn."""

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from blockdraft_bench.common.figure import error_bars
from blockdraft_bench.peers.answers import BLOCKDRAFT
from blockdraft_bench.peers.report import PeerRow, PeersReport, markdown
from blockdraft_bench.report.section import Panel, Section

Runs = Sequence[tuple[int, PeerRow]]


def draw_peers(rows: Runs, axes: Axes) -> None:
    """Draw a bar for the speed of each program over that of our plain decoding."""
    places = range(len(rows))
    axes.barh(
        places,
        [row.ratio_to_plain.value or 0.0 for _, row in rows],
        xerr=error_bars([row.ratio_to_plain for _, row in rows]),
        capsize=3,
        color=["C0" if row.peer == BLOCKDRAFT else "C1" for _, row in rows],
    )
    several = len({run for run, _ in rows}) > 1
    names = [
        f"{f'{run}: ' if several else ''}{row.peer}\n{row.variant}, {row.dtype}"
        for run, row in rows
    ]
    axes.set_yticks(places, names, fontsize="small")
    axes.invert_yaxis()
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("speed over that of blockdraft plain")


def _panel(reports: Sequence[PeersReport]) -> Panel | None:
    rows = [(run, row) for run, report in enumerate(reports, 1) for row in report.results]
    draw = partial(draw_peers, rows)
    return Panel("peers", "The same prompts elsewhere", draw) if rows else None


PEERS = Section("The same prompts elsewhere", PeersReport, markdown, _panel)
