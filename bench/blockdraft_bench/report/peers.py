"""Other programs in a report: their speeds on the same prompts are drawn."""

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from blockdraft_bench.peers.figure import draw_ratios
from blockdraft_bench.peers.report import PeerRow, PeersReport, markdown
from blockdraft_bench.report.section import Panel, Section

Runs = Sequence[tuple[int, PeerRow]]


def draw_peers(rows: Runs, axes: Axes) -> None:
    """Draw a bar for the speed of our drafted decoding over that of each program."""
    draw_ratios(axes, [row for _, row in rows])
    several = len({run for run, _ in rows}) > 1
    names = [
        f"{f'{run}: ' if several else ''}{row.peer}\n{row.variant}, {row.dtype}"
        for run, row in rows
    ]
    axes.set_yticks(range(len(rows)), names, fontsize="small")


def _panel(reports: Sequence[PeersReport]) -> Panel | None:
    rows = [(run, row) for run, report in enumerate(reports, 1) for row in report.results]
    draw = partial(draw_peers, rows)
    return Panel("peers", "The same prompts elsewhere", draw) if rows else None


PEERS = Section("The same prompts elsewhere", PeersReport, markdown, _panel)
