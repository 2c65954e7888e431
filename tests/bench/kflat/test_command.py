"""`blockdraft bench kflat` on a tiny target, from the command line to the files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from blockdraft_bench.kflat import measure
from blockdraft_client.cli.main import main

Run = Callable[..., int]


@pytest.fixture
def bench(target: Path, workplace: Path) -> Run:
    """Run the command with the arguments that make it small, and these."""

    def call(*arguments: str) -> int:
        small = ["--target", str(target), "--max-tokens", "8", "--runs", "2"]
        # Values of a list add to those before.
        lists = [("--context-tokens", "20"), ("--batch", "1")]
        small += [part for flag in lists if flag[0] not in arguments for part in flag]
        return main(["bench", "kflat", *small, *arguments])

    return call


def test_measures_and_reports(
    bench: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "MATRIX_SIZE", 64)
    monkeypatch.setattr(measure, "STREAM_SHAPE", (256, 256))
    assert bench("--batch", "1", "4", "--context-tokens", "0", "20", "--json") == 0
    [output] = (tmp_path / "bench-results").iterdir()
    assert output.name.startswith("kflat-")
    report = json.loads(capsys.readouterr().out)
    assert report["benchmark"] == "kflat"
    assert report["target"]["name"] == "tiny-llama"
    assert set(report["hardware"]) == {"cpu", "cores", "accelerator", "instructions"}
    order = [(r["batch"], r["context_tokens"], r["tokens"]) for r in report["results"]]
    one = [(1, context, tokens) for context in (0, 20) for tokens in (1, 2, 4, 8)]
    assert order == one + [(4, context, tokens) for context in (0, 20) for tokens in (4, 8)]
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
        assert curve["free_until_tokens"] in (1, 2, 4, 8)
        assert curve["explanation"].startswith("free up to")
    assert report["modelled_note"] is None
    assert json.loads((output / "kflat.json").read_text("utf-8")) == report
    assert "Free until" in (output / "kflat.md").read_text("utf-8")
    assert (output / "kflat.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.tpu
def test_models_without_measuring(
    bench: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--runs", "0", "--max-tokens", "2", "--topology", "v5e:2x2")
    assert bench(*arguments, "--output", str(tmp_path / "out")) == 0
    table = capsys.readouterr().out
    assert "4 x TPU v5 lite (v5e:2x2) (modelled)" in table
    assert "nothing ran" in table
    report = json.loads((tmp_path / "out" / "kflat.json").read_text("utf-8"))
    assert [(row["tokens"], row["modelled"]) for row in report["results"]] == [(1, True), (2, True)]
    assert all(row["compiled_flops"] > row["flops"] for row in report["results"])
    assert report["curves"][0]["roofline"]["source"] == "published"
