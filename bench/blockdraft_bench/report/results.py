"""Results of the other measurements, read back from their JSON, as far as a report shows them.

Names and units are those of the measurements' own reports.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdraft_bench.common.statistics import Estimate
from blockdraft_bench.common.typed_json import read_row

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AcceptanceRow:
    """What a drafter gains on one dataset; `steps` are the verifications that measure it."""

    method: str
    draft_length: int
    dataset: str
    temperature: float
    samples: int
    steps: int
    acceptance_length: Estimate
    acceptance_per_position: tuple[float | None, ...]
    identical_share: float

    @property
    def key(self) -> tuple[object, ...]:
        """What no two rows may share."""
        return self.method, self.draft_length, self.dataset, self.temperature


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """How fast one method decodes one dataset; "plain" is a method too."""

    dataset: str
    method: str
    temperature: float
    samples: int
    tokens_per_second: float | None
    ttft_seconds: float | None
    speedup: Estimate
    acceptance_length: Estimate
    identical_share: float

    @property
    def key(self) -> tuple[object, ...]:
        """What no two rows may share."""
        return self.dataset, self.method, self.temperature


@dataclass(frozen=True, slots=True)
class ServeRow:
    """A service under one load: requests in flight ("closed") or per second ("open")."""

    mode: str
    load: float
    method: str
    requests: int
    failed: int
    output_tokens_per_second: float
    ttft_p50_seconds: float | None
    tpot_p50_seconds: float | None
    latency_p50_seconds: float | None
    latency_p99_seconds: float | None
    goodput_requests_per_second: float | None

    @property
    def key(self) -> tuple[object, ...]:
        """What no two rows may share."""
        return self.mode, self.load, self.method


@dataclass(frozen=True, slots=True)
class SplitRow:
    """Three processes against one; speeds are those of one sequence."""

    concurrency: int
    one_process_tokens_per_second: float
    three_process_tokens_per_second: float
    ratio: Estimate

    @property
    def key(self) -> tuple[object, ...]:
        """What no two rows may share."""
        return (self.concurrency,)


@dataclass(frozen=True, slots=True)
class KFlatRow:
    """One step size K on one device; `modelled` if nothing ran."""

    device: str
    model: str
    modelled: bool
    batch: int
    context_tokens: int
    tokens: int
    seconds: float
    relative_to_one: float

    @property
    def curve(self) -> tuple[str, str, bool, int, int]:
        """All but the step size."""
        return self.device, self.model, self.modelled, self.batch, self.context_tokens

    @property
    def key(self) -> tuple[object, ...]:
        """What no two rows may share."""
        return *self.curve, self.tokens


@dataclass(frozen=True, slots=True)
class PeerRow:
    """Another program, or this one, on the same prompts; ratios are to this one."""

    run: int
    peer: str
    variant: str
    dtype: str
    samples: int
    tokens_per_second: float | None
    ratio_to_plain: Estimate
    ratio_to_drafted: Estimate
    identical_share: float

    @property
    def key(self) -> tuple[object, ...]:
        """What no two rows may share: this program takes part in every run."""
        return self.run, self.peer, self.variant, self.dtype


@dataclass(frozen=True, slots=True)
class LengthRow:
    """τ at one block size: predicted from a fit, or measured, in which case `source` says where."""

    run: int
    block_size: int
    source: str | None
    acceptance_length: Estimate

    @property
    def key(self) -> tuple[object, ...]:
        """What no two rows may share."""
        return self.run, self.block_size, self.source


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """The predicted speed-up at one block size on one device; None past its cost curve's end."""

    run: int
    device: str
    model: str
    modelled: bool
    batch: int
    context_tokens: int
    block_size: int
    speed_up: float | None

    @property
    def curve(self) -> tuple[int, str, str, bool, int, int]:
        """All but the block size."""
        where = self.device, self.model, self.modelled, self.batch, self.context_tokens
        return self.run, *where

    @property
    def key(self) -> tuple[object, ...]:
        """What no two rows may share."""
        return *self.curve, self.block_size


def read_acceptance(report: Json) -> list[AcceptanceRow]:
    """Return the rows of an `acceptance.json`."""
    setting = {"method": report["drafter"]["method"], "draft_length": report["draft_length"]}
    rows = [read_row(AcceptanceRow, row, **setting) for row in report["results"]]
    for row in rows:
        if len(row.acceptance_per_position) != row.draft_length:
            raise TypeError(f"{row.dataset} has not {row.draft_length} positions")
    return rows


def read_decode(report: Json) -> list[DecodeRow]:
    """Return the rows of a `decode.json`."""
    return [read_row(DecodeRow, row) for row in report["results"]]


def read_serve(report: Json) -> list[ServeRow]:
    """Return the loads of a `serve.json`."""
    return [
        read_row(
            ServeRow,
            row,
            ttft_p50_seconds=_percentile(row["ttft_seconds"], "p50"),
            tpot_p50_seconds=_percentile(row["tpot_seconds"], "p50"),
            latency_p50_seconds=_percentile(row["latency_seconds"], "p50"),
            latency_p99_seconds=_percentile(row["latency_seconds"], "p99"),
        )
        for row in report["results"]
    ]


def read_split(report: Json) -> list[SplitRow]:
    """Return what a `serve.json` says of three processes against one."""
    return [
        read_row(
            SplitRow,
            row,
            one_process_tokens_per_second=row["one_process"]["tokens_per_second"],
            three_process_tokens_per_second=row["three_processes"]["tokens_per_second"],
        )
        for row in report["split"]
    ]


def read_kflat(report: Json) -> list[KFlatRow]:
    """Return the points of a `kflat.json`."""
    return [read_row(KFlatRow, row) for row in report["results"]]


def read_peers(report: Json, run: int) -> list[PeerRow]:
    """Return those of a `peers.json` that took part; `run` tells several files apart."""
    rows = [row for row in report["results"] if "skipped" not in row]
    return [read_row(PeerRow, row, run=run) for row in rows]


def read_lengths(report: Json, run: int) -> list[LengthRow]:
    """Return τ by block size from a `scaling.json`, each prediction before its measurements."""
    return [
        read_row(LengthRow, row, run=run, block_size=length["block_size"], source=source)
        for length in report["acceptance_lengths"]
        for source, row in [
            (None, length),
            *((measured["source"], measured) for measured in length["measured"]),
        ]
    ]


def read_predictions(report: Json, run: int) -> list[PredictedRow]:
    """Return the speed-ups a `scaling.json` predicts."""
    return [
        read_row(PredictedRow, {**curve, **row}, run=run)
        for curve in report["results"]
        for row in curve["predictions"]
    ]


def _percentile(distribution: Json | None, name: str) -> float | None:
    value: float | None = None if distribution is None else distribution[name]
    return value
