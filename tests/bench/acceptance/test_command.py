"""`blockdraft bench acceptance` on a tiny target, from the command line to the files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flax import nnx
from tests.bench.support import check_refusal, write_target
from tests.models.tiny import tiny_config

from blockdraft_client.cli.main import main
from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFlash

Run = Callable[..., int]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    write_target(path)
    return path


@pytest.fixture
def bench(target: Path, workplace: Path) -> Run:
    """Run the command with the arguments that make it small, and these."""

    def call(*arguments: str) -> int:
        small = ["--target", str(target), "--drafter", "random", "--block-size", "4"]
        small += ["--max-prompt-tokens", "64", "--max-tokens", "13", "--concurrency", "2"]
        small += ["--samples", "2"]
        if "--dataset" not in arguments:
            small += ["--dataset", "gsm8k"]
        return main(["bench", "acceptance", *small, *arguments])

    return call


@pytest.mark.slow
def test_measures_reports_and_resumes(
    bench: Run, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--dataset", "gsm8k", str(workplace / "mbpp.jsonl"))
    assert bench(*arguments, "--json") == 0
    [output] = (workplace / "bench-results").iterdir()
    assert output.name.startswith("acceptance-")
    report = json.loads(capsys.readouterr().out)
    check_report(report)
    assert json.loads((output / "acceptance.json").read_text("utf-8")) == report
    assert (output / "acceptance.png").read_bytes().startswith(b"\x89PNG")
    answers = (output / "samples.jsonl").read_bytes()
    assert len(answers.splitlines()) == 2 * 2 * 2 * 2

    # Again, at one temperature more and as a table: only what is new is decoded.
    more_arguments = ("--output", str(output), "--temperature", "0", "1", "0.5")
    assert bench(*arguments, *more_arguments) == 0
    table = capsys.readouterr().out
    assert (output / "acceptance.md").read_text("utf-8") == table
    assert [line.split(" | ")[0] for line in table.splitlines()[4:]] == ["| gsm8k"] * 3 + [
        "| mbpp"
    ] * 3
    more = (output / "samples.jsonl").read_bytes()
    assert more.startswith(answers)
    assert len(more.splitlines()) == 2 * 2 * 2 * 3
    again = json.loads((output / "acceptance.json").read_text("utf-8"))
    assert [r for r in again["results"] if r["temperature"] != 0.5] == report["results"]


def check_report(report: dict[str, Any]) -> None:
    assert set(report["versions"]) == {"python", "blockdraft", "jax", "jaxlib", "flax", "numpy"}
    assert report["hardware"]["cores"] >= 1
    assert report["target"]["name"] == "tiny-llama"
    assert len(report["target"]["fingerprint"]) == len(report["drafter"]["fingerprint"]) == 16
    assert report["drafter"]["trained"] is False
    assert (report["block_size"], report["draft_length"]) == (4, 3)
    order = [(r["dataset"], r["temperature"]) for r in report["results"]]
    assert order == [("gsm8k", 0.0), ("gsm8k", 1.0), ("mbpp", 0.0), ("mbpp", 1.0)]
    for result in report["results"]:
        assert result["samples"] == 2
        assert 2 <= result["tokens"] <= 26
        assert 1.0 <= result["acceptance_length"] <= 4.0
        # Two answers are too few for an interval.
        assert result["acceptance_length_ci95"] is None
        assert result["acceptance_length_answers"] <= 2
        assert len(result["acceptance_per_position"]) == 3
        assert len(result["acceptance_decay"]) == 2
        assert result["identical_share"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--dataset", "gsm9k"), 2, "'gsm9k' is neither a .jsonl file nor one of math500"),
        (("--dataset", "aime24"), 2, "has no aime24.jsonl; say --datasets-dir"),
        (("--dataset", "none.jsonl"), 2, "the dataset none.jsonl does not exist"),
        (("--dataset", "gsm8k", "gsm8k"), 2, "datasets need different names"),
        (("--samples", "0"), 2, "--samples must be at least 1, got 0"),
        (("--max-tokens", "0"), 2, "--max-tokens must be at least 1"),
        (("--temperature", "-1"), 2, "--temperature must be at least 0, got -1"),
        (("--temperature", "1", "1"), 2, "--temperature has the same value twice"),
        (("--max-prompt-tokens", "5"), 2, "cannot hold the chat template"),
        (("--target", "nowhere"), 1, "'nowhere' is no directory"),
        (("--drafter", "nowhere"), 1, "'nowhere' is no directory"),
    ],
)
def test_says_what_is_wrong(
    bench: Run,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    check_refusal(capsys, (bench(*arguments), code), message)


def test_refuses_the_drafter_of_another_target(
    bench: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = DFlashConfig.default_for(tiny_config(num_layers=5), block_size=4)
    config = replace(config, target_fingerprint="fedcba9876543210")
    save_drafter(DFlash(config, rngs=nnx.Rngs(0)), tmp_path / "drafter")
    assert bench("--drafter", str(tmp_path / "drafter")) == 1
    assert "the drafter was made for target fedcba9876543210" in capsys.readouterr().err
