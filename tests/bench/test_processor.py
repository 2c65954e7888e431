"""`blockdraft bench processor`: its row, and the command with its files."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.inference import MODEL, running_fake

from blockdraft_bench import processor
from blockdraft_bench.processor import matrix
from blockdraft_bench.result import ResultRow
from blockdraft_bench.service import RunningService, ServiceConnection
from blockdraft_client.cli.main import main
from blockdraft_models.processor import Processor, this_processor, usable_cores
from blockdraft_protos.v1.inference_pb2 import GetModelResponse, ModelExactness


@pytest.mark.usefixtures("workplace")
def test_measures_a_service_with_fewer_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cores: list[int] = []
    with running_fake() as fake:
        fake.service.model = GetModelResponse()
        fake.service.model.CopyFrom(MODEL)
        exactness = ModelExactness(exact=True, dtype="bfloat16", classes=["1x1 8x8"])
        fake.service.model.exactness.CopyFrom(exactness)

        @contextlib.contextmanager
        def service(arguments: Sequence[str]) -> Iterator[RunningService]:
            cores.append(len(os.sched_getaffinity(0)))
            connection = ServiceConnection(fake.target, "", False, 60.0)
            with connection.client() as client:
                yield RunningService(connection, client.model())

        monkeypatch.setattr(processor, "own_service", service)
        before, output = os.sched_getaffinity(0), tmp_path / "out"
        flags = ["--target", "target", "--cores", "1", "--json", "--output", str(output)]
        assert main(["bench", "processor", *flags]) == 0
    assert os.sched_getaffinity(0) == before
    assert cores == [1]
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    [row] = report["results"]
    assert row["processor"] == {
        **dataclasses.asdict(this_processor()),
        "instructions": list(this_processor().instructions),
        "cores": 1,
    }
    assert row["exactness"] == "exact in bfloat16"
    # Six tokens, five of them in 2.5 s.
    assert row["plain_tokens_per_second"] == row["drafted_tokens_per_second"] == 2.0
    assert row["identical"] is True
    assert report["hardware"]["cores"] == usable_cores()
    assert report["date"] in (output / "processor.md").read_text("utf-8")


ROW: ResultRow = {
    "processor": Processor("Xeon", ("avx512_bf16", "amx_bf16"), 2),
    "exactness": "exact in bfloat16",
    "plain_tokens_per_second": 40.0,
    "drafted_tokens_per_second": 90.0,
    "speedup": 2.25,
    "identical": True,
}


def test_rows_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "versions", lambda: {"jaxlib": "0.10.2"})
    slow = {**ROW, "processor": Processor("Xeon", (), 1), "identical": False}
    slow["plain_tokens_per_second"] = slow["speedup"] = None
    page = matrix([ROW, slow], "2026-11-25", "0123456789abcdef-dirty")
    head, _, *rows = page.splitlines()
    assert {line.count("|") for line in (head, *rows)} == {12}
    assert rows == [
        "| 2026-11-25 | 0123456-dirty | Xeon | avx512_bf16, amx_bf16 | 2 | 0.10.2 "
        "| exact in bfloat16 | 40.0 | 90.0 | 2.25x | yes |",
        "| 2026-11-25 | 0123456-dirty | Xeon | none | 1 | 0.10.2 "
        "| exact in bfloat16 | - | 90.0 | - | **no** |",
    ]
    # An installed copy knows no commit.
    assert "| unknown | Xeon |" in matrix([ROW], "2026-11-25", None)
