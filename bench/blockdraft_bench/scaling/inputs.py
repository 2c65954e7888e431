"""Reading what `bench acceptance` and `bench kflat` wrote, with one clear error if it is not that.

All checks are here, so that what comes out can be relied on.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from blockdraft_bench.common.bootstrap import percentile_interval, resampled_totals
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.scaling.prediction import CostCurve


@dataclass(frozen=True, slots=True)
class ReachCounts:
    """How far proposals were accepted, in one file.

    Attributes:
        source: Name of the file's folder and of the file.
        target: Fingerprint of the target.
        drafter: Fingerprint of the drafter.
        counts: Verifications that accepted at least 0, 1, ... K tokens.
        per_answer: Whether each row of the counts is an answer; else it is a dataset, as in
            files of earlier versions, and there are no intervals.
    """

    source: str
    target: str
    drafter: str
    counts: Int[np.ndarray, "rows reach"]
    per_answer: bool

    @property
    def block_size(self) -> int:
        """Tokens verified in a step: the anchor and the drafted ones."""
        _, block_size = self.counts.shape
        return int(block_size)

    def acceptance_length(self, block_size: int) -> float:
        """Return τ of blocks of at most this file's size, cut short where smaller."""
        totals = self.counts.sum(axis=0)
        return float(totals[:block_size].sum() / totals[0])

    def acceptance_length_interval(self, block_size: int, seed: int) -> tuple[float, float] | None:
        """Return its 95 % interval; None without counts of several answers."""
        if not self.per_answer or len(self.counts) < 2:
            return None
        drawn = resampled_totals(self.counts, seed)
        lengths = drawn[drawn[:, 0] > 0]
        return percentile_interval(lengths[:, :block_size].sum(axis=1) / lengths[:, 0])


def read_acceptance(
    path: Path, temperature: float, datasets: Sequence[str] | None = None
) -> ReachCounts:
    """Read an `acceptance.json`.

    Args:
        path: The file.
        temperature: Results at other temperatures are left out.
        datasets: Which to pool; all of the file if None.

    Raises:
        BenchUsageError: If it is no such file or has no such results.
    """
    report = _read(path)
    if report.get("benchmark", "acceptance") != "acceptance":
        raise BenchUsageError(
            f"{path} is of `bench {report['benchmark']}`; only `bench acceptance` counts how many "
            "proposals of one length were accepted how far"
        )
    try:
        draft_length = int(report["draft_length"])
        results = [row for row in report["results"] if row["temperature"] == temperature]
        names = {row["dataset"] for row in results}
        wanted = names if datasets is None else set(datasets)
        missing = sorted(wanted - names)
        results = [row for row in results if row["dataset"] in wanted]
        per_answer = all("reach_counts" in row for row in results)
        rows = [
            counts
            for row in results
            for counts in (row["reach_counts"] if per_answer else [_totals(row)])
        ]
        target, drafter = report["target"]["fingerprint"], report["drafter"]["fingerprint"]
    except (KeyError, TypeError, ValueError) as error:
        raise BenchUsageError(f"{path} is no acceptance.json: {_reason(error)}") from error
    if missing:
        raise BenchUsageError(f"{path} has no {', '.join(missing)} at temperature {temperature:g}")
    if not rows:
        raise BenchUsageError(f"{path} has no results at temperature {temperature:g}")
    counts = _counts(path, rows, draft_length)
    return ReachCounts(f"{path.parent.name}/{path.name}", target, drafter, counts, per_answer)


def read_cost_curves(path: Path, batch: int) -> tuple[CostCurve, ...]:
    """Read the curves of a `kflat.json` for one number of sequences.

    Raises:
        BenchUsageError: If it is no such file or has no such curves.
    """
    report = _read(path)
    groups: dict[tuple[str, str, bool, int], dict[int, float]] = {}
    try:
        if report["benchmark"] != "kflat":
            raise ValueError(f"it is of `bench {report['benchmark']}`")
        for row in report["results"]:
            if row["batch"] == batch:
                key = (row["device"], row["model"], row["modelled"], row["context_tokens"])
                groups.setdefault(key, {})[row["tokens"]] = row["seconds"]
        values = [value for group in groups.values() for item in group.items() for value in item]
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise ValueError("tokens and seconds must be positive numbers")
    except (KeyError, TypeError, ValueError) as error:
        raise BenchUsageError(f"{path} is no kflat.json: {_reason(error)}") from error
    if not groups:
        raise BenchUsageError(f"{path} has no results for batch {batch}")
    curves = []
    for (device, model, modelled, context), group in groups.items():
        if batch not in group:
            raise BenchUsageError(f"{path} has no step of one token a sequence for batch {batch}")
        tokens = tuple(sorted(group))
        seconds = tuple(group[size] for size in tokens)
        curves.append(CostCurve(device, model, modelled, batch, context, tokens, seconds))
    return tuple(curves)


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchUsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BenchUsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(report, dict):
        raise BenchUsageError(f"{path} holds no JSON object")
    return report


def _totals(row: dict[str, Any]) -> list[int]:
    """Return the counts of a dataset from the shares of its verifications."""
    steps = int(row["steps"])
    return [steps, *(round(steps * (share or 0.0)) for share in row["acceptance_per_position"])]


def _counts(path: Path, rows: list[Any], draft_length: int) -> Int[np.ndarray, "rows reach"]:
    try:
        counts = np.array(rows)
    except ValueError as error:
        raise BenchUsageError(f"{path}: counts of different lengths") from error
    if counts.shape != (len(rows), draft_length + 1) or counts.dtype.kind != "i":
        raise BenchUsageError(f"{path}: counts must be {draft_length + 1} integers in each row")
    if (counts < 0).any() or (np.diff(counts, axis=1) > 0).any():
        raise BenchUsageError(f"{path}: counts must not be negative, nor rise along the block")
    if not counts[:, 0].any():
        raise BenchUsageError(f"{path}: no verification measured the drafter")
    return counts


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
