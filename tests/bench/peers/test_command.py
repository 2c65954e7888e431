"""`blockdraft bench peers` on a tiny target, from the command line to the files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench.support import check_refusal, write_target

from blockdraft_bench.peers import available
from blockdraft_client.cli.main import main

Run = Callable[..., int]
OURS = [("blockdraft", "plain"), ("blockdraft", "drafted")]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    write_target(path)
    return path


@pytest.fixture
def bench(target: Path, workplace: Path) -> Run:
    """Run the command with the arguments that make it small, and these."""

    def call(*arguments: str) -> int:
        small = ["--target", str(target), "--drafter", "random", "--dataset", "gsm8k"]
        small += ["--max-prompt-tokens", "64", "--max-tokens", "13", "--samples", "2"]
        return main(["bench", "peers", *small, *arguments])

    return call


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "_installed", lambda module: False)


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_absent_peers_are_reported_and_the_rest_is_measured(
    bench: Run, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--json", "--threads", "3") == 0
    report = json.loads(capsys.readouterr().out)
    [output] = (workplace / "bench-results").iterdir()
    assert output.name.startswith("peers-")
    assert json.loads((output / "peers.json").read_text("utf-8")) == report
    assert (output / "peers.png").read_bytes().startswith(b"\x89PNG")
    assert (report["benchmark"], report["threads"]) == ("peers", 3)
    assert report["target"]["name"] == "tiny-llama"
    check_rows(report["results"], OURS)
    assert report["skipped"] == {
        "transformers": "not installed; try `pip install transformers torch`",
        "llama.cpp": "not installed; try `pip install llama-cpp-python`",
    }

    # Again, as a table: nothing is decoded anew.
    answers = (output / "samples.jsonl").read_bytes()
    assert len(answers.splitlines()) == 2 * 2
    assert bench("--threads", "3", "--output", str(output)) == 0
    assert (output / "samples.jsonl").read_bytes() == answers
    table, said = capsys.readouterr()
    assert "taking over 4 of 4 results measured" in said
    assert (output / "peers.md").read_text("utf-8") == table
    assert "| blockdraft drafted | float32 | 2 |" in table
    assert "llama.cpp: not installed" in table
    again = json.loads((output / "peers.json").read_text("utf-8"))
    assert again["results"] == report["results"]


@pytest.mark.filterwarnings("default")  # theirs
def test_transformers_decodes_the_same_prompts_with_the_same_weights(
    bench: Run, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert bench("--peer", "transformers", "--assistant", str(target), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    names = [("transformers", name) for name in ("generate", "prompt_lookup", "assisted")]
    check_rows(report["results"], OURS + names)
    assert report["assistant"] == report["target"]
    assert report["peer_versions"]["transformers"]


def check_rows(rows: list[dict[str, Any]], names: list[tuple[str, str]]) -> None:
    assert [(row["peer"], row["variant"]) for row in rows] == names
    for row in rows:
        assert row["dtype"] == "float32"
        assert row["samples"] == 2
        assert 2 <= row["tokens"] <= 26
        assert row["tokens_per_second"] > 0
        assert row["ttft_seconds"] > 0
        for name in ("ratio_to_plain", "ratio_to_drafted"):
            # Two answers are too few for an interval.
            assert (row[f"{name}_ci95"], row[f"{name}_answers"]) == (None, 2)
        assert row["identical_share"] == 1.0
        assert row["first_divergences"] == []
    plain, drafted = rows[:2]
    assert plain["ratio_to_plain"] == drafted["ratio_to_drafted"] == 1.0
    for row in rows:
        speed = row["tokens_per_second"]
        assert row["ratio_to_plain"] == pytest.approx(speed / plain["tokens_per_second"])
        assert row["ratio_to_drafted"] == pytest.approx(speed / drafted["tokens_per_second"])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--dataset", "gsm9k"), 2, "'gsm9k' is neither a .jsonl file nor one of math500"),
        (("--dataset", "gsm8k", "gsm8k"), 2, "datasets need different names"),
        (("--samples", "0"), 2, "--samples must be at least 1, got 0"),
        (("--max-tokens", "1"), 2, "--max-tokens must be at least 2, got 1"),
        (("--threads", "0"), 2, "--threads must be at least 1, got 0"),
        (("--peer", "transformers"), 2, "transformers cannot take part: not installed"),
        (("--peer", "llama.cpp"), 2, "llama.cpp cannot take part: not installed"),
        (("--assistant", "x"), 2, "--assistant is for transformers: not installed"),
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
