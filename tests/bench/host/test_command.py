"""`blockdraft bench host` with few sequences, from the command line to the files."""

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
        small = ["--sequences", "1", "5", "--width", "8", "--runs", "3"]
        return main(["bench", "host", *small, *arguments])

    return call


@pytest.mark.parametrize("policy", ["adaptive", "fixed"])
def test_measures_and_reports(
    bench: Run, workplace: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    arguments = ("--block-size", "6", "--accepted", "2", "--runs", "40", "--draft-policy", policy)
    assert bench(*arguments, "--json") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    [output] = (workplace / "bench-results").iterdir()
    assert output.name.startswith("host-")
    assert json.loads((output / "host.json").read_text("utf-8")) == report
    assert report["benchmark"] == "host"
    assert (report["width"], report["block_size"], report["accepted"]) == (8, 6, 2)
    assert (report["draft_policy"], report["runs"]) == (policy, 40)
    assert [(row["mode"], row["sequences"]) for row in report["results"]] == [
        ("plain", 1),
        ("plain", 5),
        ("drafted", 1),
        ("drafted", 5),
    ]
    assert all(0 < row["host_ms"] <= row["host_ms_p90"] for row in report["results"])
    page = (output / "host.md").read_text("utf-8")
    assert page.count("\n|") == 2 + 4
    assert f"blocks of 6 of which 2 drafted tokens are accepted, {policy} policy" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sequences", "0"), "--sequences must be at least 1, got 0"),
        (("--accepted", "0"), "--accepted must be at least 1"),
        (("--accepted", "16"), "--accepted must be less than --block-size (16), got 16"),
        (("--block-size", "1"), "--block-size must be at least 2"),
        (("--width", "0"), "--width must be at least 1"),
        (("--runs", "0"), "--runs must be at least 1"),
        (("--draft-policy", "bold"), "--draft-policy must be adaptive or fixed"),
    ],
)
def test_says_what_is_wrong(
    bench: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    check_refusal(capsys, (bench(*arguments), 2), message)
