"""`blockdraft bench link` with narrow features, from the command line to the files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def test_says_which_settings_it_had_wherever_they_came_from(
    bench: Callable[..., int], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "bench.toml").write_text('[bench.link]\ntransport = ["unix"]\n')
    monkeypatch.setenv("BLOCKDRAFT_BENCH_LINK_CONFIG", "bench.toml")
    monkeypatch.setenv("BLOCKDRAFT_BENCH_LINK_RUNS", "7")
    assert bench("--output", "out") == 0
    report = json.loads((workplace / "out" / "link.json").read_text("utf-8"))
    assert report["command"].split() == [
        *("blockdraft", "bench", "link", "--width=8", "--width=48", "--sequences=1"),
        *("--sequences=3", "--transport=unix", "--runs=2", "--output=out"),
    ]
    assert report["environment"]["BLOCKDRAFT_BENCH_LINK_CONFIG"] == "bench.toml"
