"""`blockdraft bench report`: one page and one figure of any number of measurements."""

import argparse
import sys
from pathlib import Path

from blockdraft_bench.common.flags import add_output_arguments, output_folder


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
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Read, draw, write; return the exit code."""
    # Imported here: `--help` waits neither for numpy nor for matplotlib, nor does a damaged file
    # for the latter.
    from blockdraft_bench.report.inputs import find_files, merge, read_source

    sources = [read_source(path) for path in find_files(args.input)]
    results = merge(sources)
    from blockdraft_bench.common.environment import command_line, commit
    from blockdraft_bench.common.line_store import digest
    from blockdraft_bench.report.page import NAME, write_report
    from blockdraft_bench.report.panels import panels_of

    identity = digest([source.content for source in sources])
    output = output_folder(args.output, NAME, identity)
    # Versions and hardware are those of the measurements; here nothing is measured.
    made_by = {"command": command_line(), "commit": commit()}
    text, page = write_report(made_by, sources, results, panels_of(results), output)
    print(f"written to {output}", file=sys.stderr)
    sys.stdout.write(text if args.json else page)
    return 0
