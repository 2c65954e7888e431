"""`blockdraft bench link` with narrow features, from the command line to the files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

SMALL = "link --width 8 48 --sequences 1 3 --runs 2"


def test_measures_and_reports(reported: Callable[..., tuple[dict[str, Any], Path]]) -> None:
    report, output = reported("--transport", "shared-memory", "unix", "tcp")
    found = [
        (row["transport"], row["width"], row["sequences"], row["rows"], row["bytes"])
        for row in report["results"]
    ]
    assert found == [
        (transport, width, sequences, 5, 2 * width * sequences * 5)
        for transport in ("shared-memory", "unix", "tcp")
        for width in (8, 48)
        for sequences in (1, 3)
    ]
    for row in report["results"]:
        assert 0 < row["verifier_host_ms"] < row["round_trip_ms"] <= row["round_trip_ms_p90"]
        assert 0 < row["drafter_host_ms"] < row["round_trip_ms"]
    page = (output / "link.md").read_text("utf-8")
    assert page.count("\n|") == 2 + 12
    assert "drafts of 15 tokens, medians of 2 round trips" in page
