"""`blockdraft bench report`: the pages and figures of any number of measurements on one page."""

import argparse
import datetime
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.settings import RESULTS

# In the order of the page.
TITLES = {
    "decode": "Decoding speed",
    "kflat": "Cost of verifying K tokens",
    "serve": "A service under load",
    "peers": "The same prompts elsewhere",
    "link": "The link between verifier and drafter",
    "schemas": "JSON Schemas as constraints",
    "processor": "Processors",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench report`."""
    parser.add_argument(
        "input",
        nargs="+",
        type=Path,
        metavar="DIR_OR_FILE",
        help="JSON reports of measurements, or folders that hold some",
    )
    parser.add_argument(
        "--output", type=Path, help=f"folder for the files; unset: one under `./{RESULTS}`"
    )


def run(args: argparse.Namespace) -> None:
    """Write `report.md` with the figures beside it, and print the page."""
    files: dict[str, list[Path]] = {name: [] for name in TITLES}
    for file in find_files(args.input):
        files[measurement_of(file)].append(file)
    output = args.output or RESULTS / f"report-{datetime.date.today()}"
    output.mkdir(parents=True, exist_ok=True)
    parts = ["# Benchmarks\n"]
    for name, reports in files.items():
        parts += [f"## {TITLES[name]}\n"] if reports else []
        for number, file in enumerate(reports, 1):
            parts.append(file.with_suffix(".md").read_text("utf-8"))
            figure = file.with_suffix(".png")
            if figure.exists():
                copy = f"{name}-{number}.png"
                shutil.copyfile(figure, output / copy)
                parts.append(f"![{TITLES[name]}]({copy})\n")
    page = "\n".join(parts)
    (output / "report.md").write_text(page, encoding="utf-8")
    print(f"written to {output}", file=sys.stderr)
    sys.stdout.write(page)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files named, and the reports in the folders named, each once."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [file for name in TITLES for file in sorted(path.rglob(f"{name}.json"))]
            if not inside:
                raise BenchUsageError(f"{path} has no results of a measurement")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise BenchUsageError(f"{path} does not exist")
    return list(dict.fromkeys(file.resolve() for file in files))


def measurement_of(file: Path) -> str:
    """Return the name of the measurement that a JSON report is of."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BenchUsageError(f"{file} cannot be read: {error}") from error
    name = content.get("benchmark") if isinstance(content, dict) else None
    if name not in TITLES:
        raise BenchUsageError(f"{file} is no report of blockdraft bench {', '.join(TITLES)}")
    if not file.with_suffix(".md").exists():
        raise BenchUsageError(f"{file} has no page beside it, {file.stem}.md")
    return str(name)
