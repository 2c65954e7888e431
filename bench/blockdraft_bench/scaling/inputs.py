"""What is taken from `bench acceptance` and `bench kflat`, checked, so that it can be relied on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from blockdraft_bench.acceptance.report import AcceptanceReport, DatasetAcceptance
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.provenance import Target
from blockdraft_bench.common.record import read_record
from blockdraft_bench.common.statistics import Estimate, bootstrap
from blockdraft_bench.kflat.report import KFlatReport, steps_by_curve
from blockdraft_bench.scaling.prediction import CostCurve


@dataclass(frozen=True, slots=True)
class ReachCounts:
    """How far proposals were accepted, in one file.

    Attributes:
        source: See `file_name`.
        target: The target.
        drafter: Fingerprint of the drafter.
        counts: Verifications that accepted at least 0, 1, ... K tokens.
        per_answer: Whether each row of the counts is an answer; else it is a dataset, as in
            files of earlier versions, and there are no intervals.
    """

    source: str
    target: Target
    drafter: str
    counts: Int[np.ndarray, "rows reach"]
    per_answer: bool

    @property
    def block_size(self) -> int:
        """Tokens verified in a step: the anchor and the drafted ones."""
        return int(self.counts.shape[1])

    def acceptance_length(self, block_size: int, seed: int) -> Estimate:
        """Return τ of blocks of at most this file's size, cut short where smaller."""
        [length] = bootstrap(
            self.counts,
            lambda totals: totals[:, :block_size].sum(axis=1, keepdims=True) / totals[:, :1],
            seed,
        )
        return length if self.per_answer else Estimate(length.value)


def file_name(path: Path) -> str:
    """Return what reports call a file: its folder and its name."""
    return f"{path.parent.name}/{path.name}"


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
    report = read_record(AcceptanceReport, path, "acceptance.json")
    found = [row for row in report.results if row.temperature == temperature]
    missing = sorted(set(datasets or ()) - {row.dataset for row in found})
    if missing:
        raise BenchUsageError(f"{path} has no {', '.join(missing)} at temperature {temperature:g}")
    chosen = [row for row in found if datasets is None or row.dataset in datasets]
    if not chosen:
        raise BenchUsageError(f"{path} has no results at temperature {temperature:g}")
    per_answer = all(row.reach_counts for row in chosen)
    rows = [
        counts for row in chosen for counts in (row.reach_counts if per_answer else [_pooled(row)])
    ]
    return ReachCounts(
        file_name(path),
        report.target,
        report.drafter.fingerprint,
        _checked(path, rows, report.draft_length),
        per_answer,
    )


def read_cost_curves(path: Path, batch: int) -> tuple[CostCurve, ...]:
    """Read the curves of a `kflat.json` for one number of sequences.

    Raises:
        BenchUsageError: If it is no such file or has no such curves.
    """
    report = read_record(KFlatReport, path, "kflat.json")
    curves = []
    for name, steps in steps_by_curve(report.results).items():
        if name.batch != batch:
            continue
        if not all(step.tokens > 0 and 0 < step.seconds < math.inf for step in steps):
            raise BenchUsageError(f"{path}: tokens and seconds must be positive numbers")
        if steps[0].tokens != batch:
            raise BenchUsageError(f"{path} has no step of one token a sequence for batch {batch}")
        tokens = tuple(step.tokens for step in steps)
        curves.append(CostCurve(name, tokens, tuple(step.seconds for step in steps)))
    if not curves:
        raise BenchUsageError(f"{path} has no results for batch {batch}")
    return tuple(curves)


def _pooled(row: DatasetAcceptance) -> tuple[int, ...]:
    """Return the counts of a dataset from the shares of its verifications."""
    shares = (each.value or 0.0 for each in row.acceptance_per_position)
    return row.steps, *(round(row.steps * share) for share in shares)


def _checked(
    path: Path, rows: Sequence[Sequence[int]], draft_length: int
) -> Int[np.ndarray, "rows reach"]:
    if any(len(row) != draft_length + 1 for row in rows):
        raise BenchUsageError(f"{path}: counts must be {draft_length + 1} integers in each row")
    counts = np.array(rows, np.int64)
    if (counts < 0).any() or (np.diff(counts, axis=1) > 0).any():
        raise BenchUsageError(f"{path}: counts must not be negative, nor rise along the block")
    if not counts[:, 0].any():
        raise BenchUsageError(f"{path}: no verification measured the drafter")
    return counts
