"""The page of a report: where its numbers come from, its figures, its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from blockdraft_bench.common.figure import panels as figure_of
from blockdraft_bench.common.markdown import bullets, page, table
from blockdraft_bench.common.provenance import Report
from blockdraft_bench.decode.report import DecodeReport
from blockdraft_bench.report.decode import greedy_drafted
from blockdraft_bench.report.published import PUBLISHED, Published, published_tables
from blockdraft_bench.report.section import Panel
from blockdraft_bench.report.sources import SECTIONS, Source

NAME = "report"
COLUMNS = 3


@dataclass(frozen=True, slots=True)
class Page:
    """What `report.json` holds.

    Attributes:
        command: What made it, as a shell reads it.
        commit: Of the code that made it.
        sources: Names of all files, with all they hold.
        panels: Names of the panels that were drawn.
        published: Other people's numbers.
    """

    command: str
    commit: str | None
    sources: tuple[Source, ...]
    panels: tuple[str, ...]
    benchmark: str = NAME
    published: Published = PUBLISHED


def markdown(
    sources: Sequence[Source], reports: Mapping[str, Sequence[Report]], panels: Sequence[Panel]
) -> str:
    """Return the page people read: the page of every file, and what others published."""
    decoded = [report for report in reports.get("decode", ()) if isinstance(report, DecodeReport)]
    return page(
        "# Benchmarks",
        _sources_table(sources),
        f"![{', '.join(panel.title for panel in panels)}]({NAME}.png)" if panels else "",
        *(
            part
            for name, found in reports.items()
            for part in (f"## {SECTIONS[name].title}", *map(SECTIONS[name].markdown, found))
        ),
        "## Published numbers",
        "Of other targets on other hardware with other drafters: a scale for the numbers above, "
        "not their baseline.",
        published_tables(greedy_drafted(decoded)),
        "## Single figures" if panels else "",
        bullets(f"[{panel.title}]({NAME}-{panel.name}.png)" for panel in panels),
    )


def figures(panels: Sequence[Panel]) -> dict[str, Figure]:
    """Return all panels in one figure, and each in one of its own, by the end of the file name."""
    single = {f"-{panel.name}": _figure([panel]) for panel in panels}
    return {"": _figure(panels), **single} if panels else {}


def _figure(panels: Sequence[Panel]) -> Figure:
    figure, places = figure_of(len(panels), columns=COLUMNS)
    for panel, axes in zip(panels, places, strict=True):
        panel.draw(axes)
        axes.set_title(panel.title)
    return figure


def _sources_table(sources: Sequence[Source]) -> str:
    return table(
        ["Measurement", "Target", "Hardware", "Commit", "Command"],
        (
            [
                source.report.benchmark,
                str(source.report.target),
                source.report.hardware.device,
                source.report.commit or "unknown",
                f"`{source.report.command}`",
            ]
            for source in sources
        ),
    )
