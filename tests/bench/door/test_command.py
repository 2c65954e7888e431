"""`blockdraft bench door` with few streams, from the command line to the files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench.support import check_refusal

from blockdraft_client.cli.main import main

Run = Callable[..., int]


@pytest.fixture
def bench(workplace: Path) -> Run:
    """Run the command with the arguments that make it small, and these."""

    def call(*arguments: str) -> int:
        small = ["--streams", "1", "3", "--step-tokens", "1", "4", "--tokens", "9", "--runs", "1"]
        return main(["bench", "door", *small, "--step-ms", "20", *arguments])

    return call


def test_measures_and_reports(
    bench: Run, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--json") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    [output] = (workplace / "bench-results").iterdir()
    assert output.name.startswith("door-")
    assert json.loads((output / "door.json").read_text("utf-8")) == report
    assert (report["benchmark"], report["tokens"], report["step_ms"]) == ("door", 9, 20)
    found = [(row["streams"], row["step_tokens"]) for row in report["results"]]
    assert found == [(1, 1), (3, 1), (1, 4), (3, 4)]
    for row in report["results"]:
        # No more messages than steps; fewer if some came late.
        assert 0 < row["messages_per_second"] <= row["tokens_per_second"]
        assert 0 <= row["gap_ms"] <= row["gap_ms_p99"]
        assert row["server_cpu_ms"] is None or row["server_cpu_ms"] >= 0
    assert (output / "door.md").read_text("utf-8").count("\n|") == 2 + 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--streams", "0"), "--streams must be at least 1, got 0"),
        (("--step-tokens", "0"), "--step-tokens must be at least 1"),
        (("--step-ms", "-1"), "--step-ms must be at least 0"),
        (("--tokens", "1"), "--tokens must be at least 2"),
        (("--runs", "0"), "--runs must be at least 1"),
    ],
)
def test_says_what_is_wrong(
    bench: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    check_refusal(capsys, (bench(*arguments), 2), message)
