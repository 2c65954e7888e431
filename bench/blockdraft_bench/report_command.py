"""`blockdraft bench report`: one page and one figure of any number of measurements."""

import argparse
import datetime
import sys
from pathlib import Path

RESULTS = Path("bench-results")


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
    option("--json", action="store_true", help="print the merged summary instead of the page")


def run(args: argparse.Namespace) -> int:
    """Read, draw, write; return the exit code."""
    # Imported here: `--help` waits neither for numpy nor for matplotlib, nor does a damaged file
    # for the latter.
    from blockdraft_bench.report_inputs import find_files, merge, read_source

    sources = [read_source(path) for path in find_files(args.input)]
    results = merge(sources)
    from blockdraft_bench.environment import command_line, commit
    from blockdraft_bench.line_store import digest
    from blockdraft_bench.report_page import NAME, write_report
    from blockdraft_bench.report_panels import panels_of

    identity = digest([source.content for source in sources])
    output = args.output or RESULTS / f"{NAME}-{datetime.date.today()}-{identity}"
    output.mkdir(parents=True, exist_ok=True)
    # Versions and hardware are those of the measurements; here nothing is measured.
    made_by = {"command": command_line(), "commit": commit()}
    text, page = write_report(made_by, sources, results, panels_of(results), output)
    print(f"written to {output}", file=sys.stderr)
    sys.stdout.write(text if args.json else page)
    return 0
