"""`blockdraft bench processor` on a tiny target: its row, and the command with its files."""

import dataclasses
import functools
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from blockdraft_bench import processor
from blockdraft_bench.processor import matrix, measure_here
from blockdraft_bench.result import ResultRow
from blockdraft_bench.settings import ProcessorSettings
from blockdraft_client.cli.main import main
from blockdraft_models import precision
from blockdraft_models.processor import Processor, this_processor, usable_cores
from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_verifier import exactness, self_test
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.exactness import Exactness


@pytest.fixture
def settings(target: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessorSettings:
    # Fewer shapes to compile, and fewer tokens to decode.
    few = functools.partial(SchedulerSettings, max_step_tokens=8, max_context_tokens=64)
    monkeypatch.setattr(processor, "SchedulerSettings", few)
    monkeypatch.setattr(processor, "DEFAULT_PROMPT", "Hi")
    monkeypatch.setattr(processor, "MAX_SEQUENCES", 1)
    monkeypatch.setattr(processor, "MAX_TOKENS", 9)
    monkeypatch.setattr(processor, "ROUNDS", 2)
    return ProcessorSettings(target=str(target), drafter="random", quick=True)


def row_here(settings: ProcessorSettings) -> ResultRow:
    """Return a row without measuring anything, but for the cores that there are."""
    assert settings.quick
    return {**ROW, "processor": this_processor()}


def test_measures_in_a_process_with_fewer_cores(
    monkeypatch: pytest.MonkeyPatch, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processor, "measure_here", row_here)
    before = os.sched_getaffinity(0)
    output = workplace / "out"
    flags = ["--quick", "--cores", "1", "--json", "--output", str(output)]
    assert main(["bench", "processor", *flags]) == 0
    assert os.sched_getaffinity(0) == before
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert json.loads((output / "processor.json").read_text("utf-8")) == report
    [row] = report["results"]
    assert row["processor"] == {
        **dataclasses.asdict(this_processor()),
        "instructions": list(this_processor().instructions),
        "cores": 1,
    }
    assert report["hardware"]["cores"] == usable_cores()
    assert report["date"] in (output / "processor.md").read_text("utf-8")


def test_a_row(settings: ProcessorSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[int] = []
    test = self_test.self_test

    def listen(runner: ModelRunner, span: int) -> Exactness:
        spans.append(span)
        return test(runner, span)

    monkeypatch.setattr(self_test, "self_test", listen)
    monkeypatch.setattr(precision, "in_kernels", lambda: False)
    row = measure_here(settings)
    assert row["target"].name == "tiny-llama"
    assert row["drafter"].method == "dflash"
    assert row["processor"] == this_processor()
    # As without a compiler; the self-test is of bfloat16 all the same.
    assert row["auto"] == "float32"
    assert row["self_test"].startswith("exact in bfloat16: ")
    assert spans == [8]
    assert row["plain_tokens_per_second"] > 0
    assert row["drafted_tokens_per_second"] > 0
    assert row["identical"] is True


def test_pads_steps_as_a_verifier_does(
    settings: ProcessorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over as many positions as are asked for."""
    monkeypatch.setattr(precision, "in_kernels", lambda: True)
    spans: list[int] = []

    def two_classes(runner: ModelRunner, span: int) -> Exactness:
        spans.append(span)
        first, *others = runner.buckets
        return Exactness("bfloat16", ((first,), tuple(others)))

    monkeypatch.setattr(self_test, "self_test", two_classes)
    # Steps of a tiny target take as long as the machine likes.
    monkeypatch.setattr(exactness, "_MOST_COST", math.inf)
    row = measure_here(dataclasses.replace(settings, quick=False))
    assert (row["auto"], row["identical"]) == ("bfloat16", True)
    assert row["self_test"].endswith(" step shapes are batch-invariant, 1x1 are padded")
    assert spans == [128]


def test_takes_no_other_device(
    settings: ProcessorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match="set JAX_PLATFORMS=cpu"):
        measure_here(settings)


ROW: ResultRow = {
    "processor": Processor("Xeon", ("avx512_bf16", "amx_bf16"), 2),
    "auto": "bfloat16",
    "self_test": "exact in bfloat16: all 35 step shapes are batch-invariant",
    "plain_tokens_per_second": 40.0,
    "drafted_tokens_per_second": 90.0,
    "identical": True,
}


def test_rows_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "versions", lambda: {"jaxlib": "0.10.2"})
    slow = {**ROW, "processor": Processor("Xeon", (), 1), "auto": "float32", "identical": False}
    slow["plain_tokens_per_second"] = None
    page = matrix([ROW, slow], "2026-11-25", "0123456789abcdef-dirty")
    head, _, *rows = page.splitlines()
    assert {line.count("|") for line in (head, *rows)} == {13}
    assert rows == [
        "| 2026-11-25 | 0123456-dirty | Xeon | avx512_bf16, amx_bf16 | 2 | 0.10.2 | bfloat16 "
        "| exact in bfloat16: all 35 step shapes are batch-invariant "
        "| 40.0 | 90.0 | 2.25x | yes |",
        "| 2026-11-25 | 0123456-dirty | Xeon | none | 1 | 0.10.2 | float32 "
        "| exact in bfloat16: all 35 step shapes are batch-invariant "
        "| - | 90.0 | - | **no** |",
    ]
    # An installed copy knows no commit.
    assert "| unknown | Xeon |" in matrix([ROW], "2026-11-25", None)
