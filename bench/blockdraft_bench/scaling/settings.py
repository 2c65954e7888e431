"""What `blockdraft bench scaling` is told."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft_bench.common.settings import OutputSettings
from blockdraft_runtime.configuration.definition import check, group, required, setting


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is predicted; part of the report."""

    datasets: tuple[str, ...] | None = setting(
        None,
        "one or more datasets of these files, pooled; unset: all",
        flag="dataset",
        metavar="SET",
    )
    temperature: float = setting(0.0, "which results of these files", minimum=0)
    batch: int = setting(1, "number of sequences: which curves of the kflat.json", minimum=1)
    draft_seconds: float | None = setting(
        None, "time of the drafter's pass; unset: it counts as free", minimum=0
    )
    overhead_seconds: float = setting(
        0.0, "any other time that only a drafted step takes", minimum=0
    )
    seed: int = setting(0, "of the intervals")

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """Everything `blockdraft bench scaling` is told."""

    acceptance: Path = required(
        "the acceptance.json of `blockdraft bench acceptance`, drafts of two tokens at least",
        metavar="FILE",
    )
    kflat: Path = required("the kflat.json of `blockdraft bench kflat`", metavar="FILE")
    measured: tuple[Path, ...] = setting(
        (),
        "one or more other acceptance.json, made with other block sizes, to compare with",
        metavar="FILE",
    )
    prediction: PredictionSettings = group(PredictionSettings)
    result: OutputSettings = group(OutputSettings)
