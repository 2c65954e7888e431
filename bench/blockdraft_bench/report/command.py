"""`blockdraft bench report`: one page and one figure of any number of measurements."""

import argparse
from dataclasses import replace
from pathlib import Path

from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import RESULTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench report`."""
    option = parser.add_argument
    option(
        "input",
        nargs="+",
        type=Path,
        metavar="DIR_OR_FILE",
        help="JSON reports of other measurements, or folders that hold some",
    )
    option("--output", type=Path, help=f"folder for the files; else a new one in {RESULTS}")
    option("--json", action="store_true", help="print the JSON report instead of Markdown")


def measure(args: argparse.Namespace, run: Run) -> Outcome:
    """Read the files, put what they hold together."""
    # Imported here: `--help` waits neither for numpy nor for matplotlib.
    from blockdraft_bench.common.provenance import command_line
    from blockdraft_bench.report.page import Page, figures, markdown
    from blockdraft_bench.report.sources import find_files, panels_of, read_source, reports_of

    sources = tuple(read_source(path) for path in find_files(args.input))
    reports = reports_of(sources)
    panels = panels_of(reports)
    run.identify([source.report for source in sources])
    # Versions and hardware are those of the measurements; here nothing is measured.
    page = Page(
        command=command_line(),
        commit=run.commit,
        sources=tuple(replace(source, file=Path(source.file).name) for source in sources),
        panels=tuple(panel.name for panel in panels),
    )
    return Outcome(page, markdown(sources, reports, panels), figures(panels))
