"""`blockdraft bench kflat` on a tiny target, from the command line to the files."""

import json
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
        assert row["modelled"] is False
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
    assert report["modelled_note"] is None
    assert "Free until" in (output / "kflat.md").read_text("utf-8")


@pytest.mark.tpu
def test_models_without_measuring(
    bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = ("--max-tokens", "2", "--batch", "1", "--context-tokens", "20")
    more = ("--dtype", "auto", "--output", "out")
    assert bench(*shapes, "--runs", "0", "--topology", "v5e:2x2", *more) == 0
    table = capsys.readouterr().out
    assert "4 x TPU v5 lite (v5e:2x2) (modelled)" in table
    assert "nothing ran" in table
    report = json.loads((tmp_path / "out" / "kflat.json").read_text("utf-8"))
    assert [(row["tokens"], row["modelled"]) for row in report["results"]] == [(1, True), (2, True)]
    assert all(row["compiled_flops"] > row["flops"] for row in report["results"])
    assert report["curves"][0]["roofline"]["source"] == "published"
