"""`blockdraft bench slice` with few steps, from the command line to the files."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.bench.support import check_refusal

from blockdraft_client.cli.main import main


def test_measures_and_reports(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--bytes", "1", "100000", "--followers", "2", "--runs", "3"]
    assert main(["bench", "slice", *small, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    [output] = (workplace / "bench-results").iterdir()
    assert output.name.startswith("slice-")
    assert json.loads((output / "slice.json").read_text("utf-8")) == report
    assert (report["benchmark"], report["followers"], report["runs"]) == ("slice", 2, 3)
    assert [row["bytes"] for row in report["results"]] == [1, 100000]
    for row in report["results"]:
        assert 0 < row["held_ms"] <= row["held_ms_p90"]
        assert row["leader_ms"] > 0
    page = (output / "slice.md").read_text("utf-8")
    assert page.count("\n|") == 2 + 2
    assert "followers: 2, medians of 3 steps" in page


@pytest.mark.parametrize("flag", ["--bytes", "--followers", "--runs"])
def test_says_what_is_wrong(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    check_refusal(capsys, (main(["bench", "slice", flag, "0"]), 2), f"{flag} must be at least 1")
