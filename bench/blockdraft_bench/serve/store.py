"""Finished runs of a load on disk: an interrupted benchmark goes on with the next."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdraft_bench.common.line_store import LineStore
from blockdraft_bench.serve.load import Load, Method
from blockdraft_bench.serve.request_record import RequestRecord

Records = tuple[RequestRecord, ...]


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which run: one method under one load, with so many requests."""

    load: Load
    method: Method
    requests: int


class LevelStore(LineStore[RunKey, Records]):
    """The finished runs under one choice of settings."""

    def _to_fields(self, key: RunKey, item: Records) -> dict[str, Any]:
        return {
            "mode": key.load.mode,
            "load": key.load.value,
            "method": key.method,
            "requests": [record.to_json() for record in item],
        }

    def _from_fields(self, fields: Mapping[str, Any]) -> tuple[RunKey, Records]:
        records = tuple(RequestRecord.from_json(value) for value in fields["requests"])
        load = Load(fields["mode"], fields["load"])
        return RunKey(load, fields["method"], len(records)), records
