"""The JSON files of other measurements: found, read, and checked against each other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.provenance import Report
from blockdraft_bench.common.record import read_record
from blockdraft_bench.report.acceptance import ACCEPTANCE
from blockdraft_bench.report.decode import DECODE
from blockdraft_bench.report.kflat import KFLAT
from blockdraft_bench.report.peers import PEERS
from blockdraft_bench.report.scaling import SCALING
from blockdraft_bench.report.section import Panel, Section
from blockdraft_bench.report.serve import SERVE

# In the order of the page.
SECTIONS: dict[str, Section[Any]] = {
    "decode": DECODE,
    "acceptance": ACCEPTANCE,
    "kflat": KFLAT,
    "scaling": SCALING,
    "serve": SERVE,
    "peers": PEERS,
}


@dataclass(frozen=True, slots=True)
class Source:
    """One file of results.

    Attributes:
        file: Its path.
        report: What it holds.
    """

    file: str
    report: Report


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files to read: those given, and those of a measurement in folders given.

    Raises:
        BenchUsageError: If a path does not exist, or a folder has none.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [file for name in SECTIONS for file in sorted(path.rglob(f"{name}.json"))]
            if not inside:
                raise BenchUsageError(f"{path} has no results of a measurement")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise BenchUsageError(f"{path} does not exist")
    return list(dict.fromkeys(file.resolve() for file in found))


def read_source(path: Path) -> Source:
    """Read one file.

    Raises:
        BenchUsageError: If it is not the JSON report of a measurement.
    """
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BenchUsageError(f"{path} cannot be read: {error}") from error
    # The first reports of acceptance did not say what they are.
    unnamed = "acceptance" if path.name == "acceptance.json" else None
    benchmark = content.get("benchmark", unnamed) if isinstance(content, dict) else None
    if benchmark not in SECTIONS:
        raise BenchUsageError(f"{path} is no report of blockdraft bench {', '.join(SECTIONS)}")
    kind = SECTIONS[benchmark].kind
    return Source(str(path), read_record(kind, path, f"report of blockdraft bench {benchmark}"))


def reports_of(sources: Iterable[Source]) -> dict[str, list[Report]]:
    """Return what the files hold by measurement, in the order of the page.

    Raises:
        BenchUsageError: If two measured the same.
    """
    origin: dict[tuple[str, str], str] = {}
    reports: dict[str, list[Report]] = {name: [] for name in SECTIONS}
    for source in sources:
        name = source.report.benchmark
        reports[name].append(source.report)
        for key in SECTIONS[name].keys(source.report):
            first = origin.setdefault((name, key), source.file)
            if first != source.file:
                raise BenchUsageError(f"{first} and {source.file} both have {name} of {key}")
    return {name: found for name, found in reports.items() if found}


def panels_of(reports: Mapping[str, Sequence[Report]]) -> list[Panel]:
    """Return the panels there are results for."""
    panels = [SECTIONS[name].panel(found) for name, found in reports.items()]
    return [panel for panel in panels if panel is not None]
