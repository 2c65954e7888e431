"""`blockdraft bench kflat` on a tiny target, from the command line to the files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft_bench.kflat import measure

SMALL = "kflat --target target --runs 2"


def test_measures_and_reports(
    reported: Callable[..., tuple[dict[str, Any], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "MATRIX_SIZE", 64)
    monkeypatch.setattr(measure, "STREAM_SHAPE", (256, 256))
    shapes = ("--max-tokens", "4", "--batch", "1", "2", "--context-tokens", "0", "20")
    report, output = reported(*shapes)
    assert report["target"]["name"] == "tiny-llama"
    assert set(report["hardware"]) == {"cpu", "cores", "accelerator", "instructions"}
    order = [(r["batch"], r["context_tokens"], r["tokens"]) for r in report["results"]]
    one = [(1, context, tokens) for context in (0, 20) for tokens in (1, 2, 4)]
    assert order == one + [(2, context, tokens) for context in (0, 20) for tokens in (2, 4)]
    for row in report["results"]:
        low, high = row["seconds_quartiles"]
        assert 0 < low <= row["seconds"] <= high
        assert row["roofline_seconds"] > 0
        assert row["seconds_over_roofline"] == row["seconds"] / row["roofline_seconds"]
        if row["tokens"] == row["batch"]:
            assert row["relative_to_one"] == 1.0
    assert len(report["curves"]) == 4
    for curve in report["curves"]:
        roofline = curve["roofline"]
        assert roofline["source"] == "measured"
        assert curve["knee_tokens"] == roofline["peak_flops"] * 4 / (2 * roofline["bandwidth"])
        assert curve["free_until_tokens"] in (1, 2, 4)
        assert curve["explanation"].startswith("free up to")
    assert "Free until" in (output / "kflat.md").read_text("utf-8")
