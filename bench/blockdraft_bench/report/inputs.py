"""Finding the JSON files of other measurements and reading all of them into one set of rows."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.report.results import (
    AcceptanceRow,
    DecodeRow,
    Json,
    KFlatRow,
    LengthRow,
    PeerRow,
    PredictedRow,
    ServeRow,
    SplitRow,
    read_acceptance,
    read_decode,
    read_kflat,
    read_lengths,
    read_peers,
    read_predictions,
    read_serve,
    read_split,
)

BENCHMARKS = ("acceptance", "decode", "kflat", "scaling", "serve", "peers")


@dataclass(frozen=True, slots=True)
class Source:
    """One file of results.

    Attributes:
        benchmark: What was measured.
        path: The file, as it was given or found.
        content: The whole report.
    """

    benchmark: str
    path: Path
    content: Json

    def describe(self) -> dict[str, Any]:
        """Return where its numbers come from, as a JSON object; null where it does not say."""
        known = ("command", "commit", "versions", "hardware", "target", "drafter", "drafters")
        about = {name: self.content.get(name) for name in known if name in self.content}
        return {"benchmark": self.benchmark, "file": self.path.name, **about}


@dataclass(frozen=True, slots=True)
class Results:
    """The rows of all files, by what they are of."""

    acceptance: tuple[AcceptanceRow, ...] = ()
    decode: tuple[DecodeRow, ...] = ()
    kflat: tuple[KFlatRow, ...] = ()
    lengths: tuple[LengthRow, ...] = ()
    predictions: tuple[PredictedRow, ...] = ()
    serve: tuple[ServeRow, ...] = ()
    split: tuple[SplitRow, ...] = ()
    peers: tuple[PeerRow, ...] = ()
    sentences: tuple[str, ...] = ()


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files to read: those given, and those of a measurement in folders given.

    Raises:
        BenchUsageError: If a path does not exist, or a folder has none.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [file for name in BENCHMARKS for file in sorted(path.rglob(f"{name}.json"))]
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
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError) as error:
        raise BenchUsageError(f"{path} cannot be read: {error}") from error
    # The first reports of acceptance did not say what they are.
    unnamed = "acceptance" if path.name == "acceptance.json" else None
    benchmark = content.get("benchmark", unnamed) if isinstance(content, dict) else None
    if benchmark not in BENCHMARKS:
        raise BenchUsageError(
            f"{path} is no report of blockdraft bench {', '.join(BENCHMARKS[:-1])}"
            f" or {BENCHMARKS[-1]}"
        )
    for name in ("hardware", "target"):
        if not isinstance(content.get(name) or {}, dict):
            raise BenchUsageError(f"{path}: {name} is {content[name]!r}")
    return Source(benchmark, path, content)


def merge(sources: Iterable[Source]) -> Results:
    """Return the rows of all sources.

    Raises:
        BenchUsageError: If one is damaged, or two measured the same.
    """
    merged: dict[str, list[Any]] = {field.name: [] for field in fields(Results)}
    origin: dict[tuple[Any, ...], Path] = {}
    runs: Counter[str] = Counter()
    for source in sources:
        runs[source.benchmark] += 1
        try:
            parts = _read(source.benchmark, source.content, runs[source.benchmark])
        except (KeyError, TypeError, AttributeError) as error:
            missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise BenchUsageError(
                f"{source.path} is no report of blockdraft bench {source.benchmark}: {missing}"
            ) from error
        for name, rows in parts.items():
            merged[name] += rows
            for row in rows if name != "sentences" else ():
                first = origin.setdefault((name, row.key), source.path)
                if first != source.path:
                    what = ", ".join(map(str, row.key))
                    raise BenchUsageError(f"{first} and {source.path} both have {name} of {what}")
    return Results(**{name: tuple(rows) for name, rows in merged.items()})


def _read(benchmark: str, content: Json, run: int) -> dict[str, list[Any]]:
    """Return the rows of a report, by field of `Results`."""
    if benchmark == "acceptance":
        return {"acceptance": read_acceptance(content)}
    if benchmark == "decode":
        return {"decode": read_decode(content)}
    if benchmark == "kflat":
        sentences = [_about(curve, curve["explanation"]) for curve in content["curves"]]
        return {"kflat": read_kflat(content), "sentences": sentences}
    if benchmark == "scaling":
        return {
            "lengths": read_lengths(content, run),
            "predictions": read_predictions(content, run),
            "sentences": [_about(curve, curve["conclusion"]) for curve in content["results"]],
        }
    if benchmark == "serve":
        return {"serve": read_serve(content), "split": read_split(content)}
    return {"peers": read_peers(content, run)}


def _about(curve: Json, sentence: str) -> str:
    """Return what was concluded from a cost curve, with which one it is."""
    modelled = " (modelled)" if curve["modelled"] else ""
    where = f"{curve['device']}{modelled}, {curve['model']}, batch {curve['batch']}"
    return f"{where}, {curve['context_tokens']} context tokens: {sentence}"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
