"""`blockdraft bench decode` on a tiny target, from the command line to the files."""

import json
import signal
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench.support import check_refusal, write_target

from blockdraft_bench.common.store import ResultStore
from blockdraft_bench.engine import loading
from blockdraft_client.cli.main import main

METHODS = ["plain", "dflash", "eagle3"]
Run = Callable[..., int]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    # EAGLE-3 takes features from three layers that only a target as deep has.
    write_target(path, num_layers=7)
    return path


@pytest.fixture
def bench(target: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command with the arguments that make it small, and these."""
    # Fewer shapes to compile.
    monkeypatch.setattr(loading, "PROMPT_STEP_TOKENS", 8)

    def call(*arguments: str) -> int:
        small = ["--target", str(target), "--dflash", "random", "--block-size", "4"]
        small += ["--max-prompt-tokens", "64", "--max-tokens", "13"]
        small += ["--samples", "2"]
        if "--dataset" not in arguments:
            small += ["--dataset", "gsm8k"]
        return main(["bench", "decode", *small, *arguments])

    return call


def test_measures_reports_and_resumes(
    bench: Run, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--dataset", "gsm8k", str(workplace / "mbpp.jsonl"), "--draft-policy", "fixed"]
    arguments += ["--eagle3", "random-eagle3:1"]
    assert bench(*arguments, "--json") == 0
    printed = capsys.readouterr()
    [output] = (workplace / "bench-results").iterdir()
    assert output.name.startswith("decode-")
    assert f"written to bench-results/{output.name}" in printed.err
    report = json.loads(printed.out)
    assert json.loads((output / "decode.json").read_text("utf-8")) == report
    assert (output / "decode.png").read_bytes().startswith(b"\x89PNG")
    samples = (output / "samples.jsonl").read_bytes()
    lines = [json.loads(line) for line in samples.splitlines()]
    check_report(report)
    check_against_samples(report, lines)

    # Again, at one temperature more and as a table: only what is new is decoded.
    assert bench(*arguments, "--output", str(output), "--temperature", "0", "1") == 0
    table = capsys.readouterr().out
    assert (output / "decode.md").read_text("utf-8") == table
    rows = [line.split(" | ")[:2] for line in table.splitlines() if line.startswith("| ")]
    assert rows[2:] == [
        ["| gsm8k", "0"],
        ["| gsm8k", "1"],
        ["| mbpp", "0"],
        ["| mbpp", "1"],
        ["| mean", "0"],
        ["| mean", "1"],
    ]
    more = (output / "samples.jsonl").read_bytes()
    assert more.startswith(samples)
    assert len(more.splitlines()) == 2 * 2 * 2
    again = json.loads((output / "decode.json").read_text("utf-8"))
    assert [r for r in again["results"] if r["temperature"] == 0.0] == report["results"]


def check_report(report: dict[str, Any]) -> None:
    assert report["benchmark"] == "decode"
    assert report["recompilations"] == 0
    assert report["versions"]["jax"]
    assert report["hardware"]["cores"] >= 1
    assert report["target"]["name"] == "tiny-llama"
    assert list(report["drafters"]) == METHODS[1:]
    prints = {drafter["fingerprint"] for drafter in report["drafters"].values()}
    assert len(prints) == 2
    for drafter in report["drafters"].values():
        assert (drafter["trained"], drafter["block_size"], drafter["draft_length"]) == (False, 4, 3)
    assert report["settings"]["datasets"] == ["gsm8k", "mbpp"]
    assert report["settings"]["draft_policy"] == "fixed"
    order = [(r["dataset"], r["method"], r["temperature"]) for r in report["results"]]
    assert order == [(dataset, m, 0.0) for dataset in ("gsm8k", "mbpp") for m in METHODS]
    assert [(a["method"], a["temperature"]) for a in report["average"]] == [
        (method, 0.0) for method in METHODS
    ]
    for result in report["results"]:
        assert result["samples"] == 2
        assert result["identical_share"] == 1.0
        assert result["divergences"] == []


def check_against_samples(report: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Compute the figures again from what each answer took."""
    assert [list(line["record"]["methods"]) for line in lines] == [
        METHODS,
        [*METHODS[1:], "plain"],
        ["eagle3", "plain", "dflash"],
        METHODS,
    ]
    for result in report["results"]:
        chosen = [
            line["record"]["methods"]
            for line in lines
            if line["key"]["dataset"] == result["dataset"]
        ]
        answers = [methods[result["method"]] for methods in chosen]
        plain = [methods["plain"] for methods in chosen]
        lengths = [len(a["token_ids"]) - 1 for a in answers]
        tokens = sum(lengths)
        seconds = sum(a["decode_seconds"] for a in answers)
        plain_tokens = sum(len(a["token_ids"]) - 1 for a in plain)
        plain_seconds = sum(a["decode_seconds"] for a in plain)
        assert result["tokens"] == tokens + 2
        assert 0.0 < result["ttft_seconds"] < 60.0
        assert result["ttft_seconds"] == statistics.median(a["ttft_seconds"] for a in answers)
        per_token = [a["decode_seconds"] / n for a, n in zip(answers, lengths, strict=True)]
        assert result["tpot_seconds"] == pytest.approx(statistics.median(per_token))
        first, third = result["tpot_seconds_quartiles"]
        assert first <= result["tpot_seconds"] <= third
        assert result["tokens_per_second"] == pytest.approx(tokens / seconds)
        speedup = (plain_seconds / plain_tokens) / (seconds / tokens)
        assert result["speedup"] == pytest.approx(speedup)
        # Two answers are too few for an interval.
        assert (result["speedup_ci95"], result["speedup_answers"]) == (None, 2)
        steps = [step for a in answers for step in a["steps"]]
        assert result["acceptance_length"] == pytest.approx(tokens / len(steps))
        drafted = [step[0] for step in steps]
        assert result["mean_draft_length"] == pytest.approx(sum(drafted) / len(steps))
        # The policy is fixed: shorter proposals come only at the end of an answer.
        length = 0 if result["method"] == "plain" else 3
        assert set(drafted[:3]) == {length}
        assert len(result["acceptance_per_position"]) == length


@pytest.mark.slow
def test_an_interrupted_run_of_plain_decoding_alone_goes_on(
    bench: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--method", "plain", "--output", str(tmp_path / "out"), "--json")
    add = ResultStore.add

    def add_then_interrupt(self: ResultStore[Any, Any], key: Any, record: Any) -> None:
        add(self, key, record)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(ResultStore, "add", add_then_interrupt)
        assert bench(*arguments) == 130
    printed = capsys.readouterr()
    assert not printed.out
    assert "goes on from here" in printed.err
    kept = (tmp_path / "out" / "samples.jsonl").read_bytes()
    assert len(kept.splitlines()) == 1
    assert not (tmp_path / "out" / "decode.json").exists()

    assert bench(*arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["drafters"] == {}
    [result] = report["results"]
    assert (result["method"], result["samples"]) == ("plain", 2)
    assert (result["speedup"], result["speedup_answers"]) == (1.0, 2)
    assert result["acceptance_length"] == 1.0
    samples = (tmp_path / "out" / "samples.jsonl").read_bytes()
    assert samples.startswith(kept)
    assert len(samples.splitlines()) == 2


def test_a_method_without_a_drafter_is_left_out(
    bench: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    # Ends with an error about the drafter that there is, once all are loaded.
    assert bench("--draft-length", "4") == 2
    printed = capsys.readouterr()
    assert "without eagle3: no EAGLE-3 drafter is shipped for target" in printed.err
    assert "the draft length must be 1 to 3" in printed.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--dataset", "gsm9k"), 2, "'gsm9k' is neither a .jsonl file nor one of math500"),
        (("--dataset", "aime24"), 2, "has no aime24.jsonl; say --datasets-dir"),
        (("--samples", "0"), 2, "--samples must be at least 1, got 0"),
        (("--max-tokens", "1"), 2, "--max-tokens must be at least 2, got 1"),
        (("--block-size", "1"), 2, "--block-size must be at least 2"),
        (("--draft-length", "0"), 2, "--draft-length must be at least 1, got 0"),
        (("--temperature", "-1"), 2, "--temperature must be at least 0, got -1"),
        (("--temperature", "1", "1"), 2, "--temperature has the same value twice"),
        (("--method", "dflash", "dflash"), 2, "--method has the same value twice"),
        (("--max-prompt-tokens", "5"), 2, "cannot hold the chat template"),
        (("--target", "nowhere"), 1, "'nowhere' is no directory"),
        (("--dflash", "nowhere"), 1, "'nowhere' is no directory"),
        (("--eagle3", "nowhere"), 1, "'nowhere' is no directory"),
        (("--method", "eagle3"), 1, "no EAGLE-3 drafter is shipped for target"),
        (("--dflash", "random-eagle3"), 2, "--dflash random-eagle3 is a drafter of the method eag"),
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


def test_lookup_is_measured_alone_and_beside_a_drafter(
    bench: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = ["lookup", "dflash+lookup", "eagle3+lookup"]
    # A random target soon says the same again and again.
    arguments = ["--method", *methods, "--draft-policy", "fixed", "--max-tokens", "60"]
    arguments += ["--eagle3", "random-eagle3:1"]
    assert bench(*arguments, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["drafters"]) == methods[1:]
    results = {result["method"]: result for result in report["results"]}
    assert set(results) == {"plain", *methods}
    for method in methods:
        assert results[method]["identical_share"] == 1.0
        assert results[method]["acceptance_length"] > 1.05


def test_an_unknown_method_is_refused(bench: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--method", "medusa") == 2
    said = capsys.readouterr().err
    known = "plain, dflash, eagle3, lookup, dflash+lookup or eagle3+lookup"
    assert f"--method must be {known}, got 'medusa'" in said
