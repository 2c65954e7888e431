"""`blockdraft bench link` with narrow features, from the command line to the files."""

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
        small = ["--width", "8", "48", "--sequences", "1", "3", "--runs", "2"]
        return main(["bench", "link", *small, "--draft-length", "3", *arguments])

    return call


def test_measures_and_reports(
    bench: Run, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--rows", "40", "--transport", "shared-memory", "unix", "tcp", "--json") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    [output] = (workplace / "bench-results").iterdir()
    assert output.name.startswith("link-")
    assert json.loads((output / "link.json").read_text("utf-8")) == report
    assert (report["benchmark"], report["runs"], report["draft_length"]) == ("link", 2, 3)
    assert set(report["hardware"]) == {"cpu", "cores", "accelerator", "instructions"}
    assert "target" not in report
    found = [
        (row["transport"], row["width"], row["sequences"], row["rows"], row["bytes"])
        for row in report["results"]
    ]
    assert found == [
        (transport, width, sequences, 40, 2 * width * sequences * 40)
        for transport in ("shared-memory", "unix", "tcp")
        for width in (8, 48)
        for sequences in (1, 3)
    ]
    for row in report["results"]:
        assert 0 < row["verifier_host_ms"] < row["round_trip_ms"] <= row["round_trip_ms_p90"]
        assert 0 < row["drafter_host_ms"] < row["round_trip_ms"]
    page = (output / "link.md").read_text("utf-8")
    assert page.count("\n|") == 2 + 12
    assert "proposals of 3 tokens, medians of 2 round trips" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "0"), "--rows must be at least 1, got 0"),
        (("--sequences", "0"), "--sequences must be at least 1"),
        (("--draft-length", "0"), "--draft-length must be at least 1"),
        (("--width", "0"), "--width must be at least 1"),
        (("--runs", "0"), "--runs must be at least 1"),
        (("--transport", "pigeon"), "--transport must be shared-memory, unix or tcp"),
    ],
)
def test_says_what_is_wrong(
    bench: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    check_refusal(capsys, (bench(*arguments), 2), message)
