"""`blockdraft bench decode` on a tiny target, from the command line to the files."""

import json
import signal
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench.support import decoded_answer, decoded_set

from blockdraft_bench.decode import averages, divergence_line, speed_table, summarize
from blockdraft_bench.result import ResultRow
from blockdraft_bench.statistics import Estimate
from blockdraft_bench.store import ResultStore
from blockdraft_runtime.settings.verifier import EngineSettings

METHODS = ["plain", "prompt-lookup", "eagle3+prompt-lookup"]
# A random target soon says the same again and again, so that prompt lookup has what to find.
SMALL = (
    "decode --target deep-target --dflash random --block-size 4 --max-prompt-tokens 64"
    " --max-tokens 40 --samples 2 --dataset gsm8k"
)
Run = Callable[..., int]


def test_measures_and_reports(reported: Callable[..., tuple[dict[str, Any], Path]]) -> None:
    arguments = ("--eagle3", "random-eagle3:1", "--draft-policy", "fixed", "--method", *METHODS)
    report, output = reported("--dataset", "mbpp.jsonl", *arguments)
    lines = [json.loads(line) for line in (output / "samples.jsonl").read_bytes().splitlines()]
    check_report(report)
    check_against_samples(report, lines)
    page = (output / "decode.md").read_text("utf-8")
    rows = [line.split(" | ")[:3] for line in page.splitlines() if line.startswith("| ")]
    means = [["| mean", "0", method] for method in METHODS[1:]]
    assert rows[2:] == [[f"| {s}", "0", m] for s in ("gsm8k", "mbpp") for m in METHODS] + means
    assert page.startswith("Target tiny-llama (")
    assert page.count("untrained eagle3 drafter (") == 1


def check_report(report: dict[str, Any]) -> None:
    assert report["target"]["name"] == "tiny-llama"
    assert report["dtype"] == "float32"
    # Prompt lookup alone has none; beside it a draft is as long as what is looked up.
    assert list(report["drafters"]) == METHODS[2:]
    drafter = report["drafters"]["eagle3+prompt-lookup"]
    assert (drafter["method"], drafter["trained"], drafter["block_size"]) == ("eagle3", False, 4)
    assert len(drafter["fingerprint"]) == 16
    assert drafter["draft_length"] == EngineSettings().prompt_lookup_block - 1
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
    """Compute the figures again from what each completion took."""
    orders = [[*METHODS[turn:], *METHODS[:turn]] for turn in (0, 1, 2, 0)]
    assert [list(line["record"]) for line in lines] == orders
    for result in report["results"]:
        chosen = [line["record"] for line in lines if line["key"][0] == result["dataset"]]
        completions = [methods[result["method"]] for methods in chosen]
        plain = [methods["plain"] for methods in chosen]
        lengths = [len(a["token_ids"]) - 1 for a in completions]
        tokens = sum(lengths)
        seconds = sum(a["decode_seconds"] for a in completions)
        plain_tokens = sum(len(a["token_ids"]) - 1 for a in plain)
        plain_seconds = sum(a["decode_seconds"] for a in plain)
        assert result["tokens"] == tokens + 2
        assert 0.0 < result["ttft_seconds"] < 60.0
        assert result["ttft_seconds"] == statistics.median(a["ttft_seconds"] for a in completions)
        per_token = [a["decode_seconds"] / n for a, n in zip(completions, lengths, strict=True)]
        assert result["tpot_seconds"] == pytest.approx(statistics.median(per_token))
        speedup = (plain_seconds / plain_tokens) / (seconds / tokens)
        assert result["speedup"] == pytest.approx(speedup)
        # Two completions are too few for an interval.
        assert (result["speedup_ci95"], result["speedup_completions"]) == (None, 2)
        steps = [step for a in completions for step in a["steps"]]
        assert result["acceptance_length"] == pytest.approx(tokens / len(steps))
        drafted = {step[0] for step in steps}
        if result["method"] == "plain":
            assert drafted == {0}
            assert result["acceptance_per_position"] == []
        else:
            assert result["acceptance_length"] > 1.05
            assert (
                len(result["acceptance_per_position"]) == EngineSettings().prompt_lookup_block - 1
            )
        if result["method"] == "eagle3+prompt-lookup":
            # The policy is fixed: where nothing is looked up, the drafter's block is whole.
            assert 3 in drafted


def test_an_interrupted_run_of_plain_decoding_alone_goes_on(
    bench: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--method", "plain", "--max-tokens", "13", "--output", str(tmp_path / "out")]
    arguments += ["--target", "target"]
    add = ResultStore.add

    def add_then_interrupt(self: ResultStore[Any], key: Any, record: Any) -> None:
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

    # At one temperature more: only what is new is decoded.
    assert bench(*arguments, "--temperature", "0", "1", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["drafters"] == {}
    result, sampled = report["results"]
    assert (result["method"], result["samples"]) == ("plain", 2)
    assert (result["temperature"], sampled["temperature"]) == (0.0, 1.0)
    assert (result["speedup"], result["speedup_completions"]) == (1.0, 2)
    assert result["acceptance_length"] == 1.0
    samples = (tmp_path / "out" / "samples.jsonl").read_bytes()
    assert samples.startswith(kept)
    assert len(samples.splitlines()) == 4


def test_a_method_without_a_drafter_is_left_out(
    bench: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    # Ends with an error about the drafter that there is, once all are loaded.
    assert bench("--draft-length", "4") == 2
    printed = capsys.readouterr()
    assert "without eagle3: no EAGLE-3 drafter is shipped for target" in printed.err
    assert "the draft length must be 1 to 3" in printed.err


# Plain: 4 tokens in 2 s. Drafted: 4 tokens in 1 s, and in 0.5 s with another fourth token.
PLAIN = decoded_answer(0.5, 2.0, (1, 2, 3, 4, 5), ((0, 0),) * 4)
SAMPLES = decoded_set(
    {"plain": PLAIN, "dflash": decoded_answer(0.7, 1.0, (1, 2, 3, 4, 5), ((3, 2), (1, 0)))},
    {"plain": PLAIN, "dflash": decoded_answer(0.7, 0.5, (1, 2, 3, 9, 5), ((3, 3),))},
)


def test_table() -> None:
    lengths = {"plain": 0, "dflash": 3}
    rows = [summarize(SAMPLES, method, length, seed=0) for method, length in lengths.items()]
    means = averages([SAMPLES], lengths, seed=0)
    headings, _, plain, drafted, mean = speed_table(rows, means).splitlines()
    assert headings == (
        "| Dataset | T | Method | Completions | TTFT ms | TPOT ms | tok/s | τ | speed-up "
        "| identical |"
    )
    assert plain == "| hand | 0 | plain | 2 | 500 | 500.0 | 2.0 |  |  |  |"
    # 4 s over 1.5 s; two completions are too few for an interval.
    assert drafted == "| hand | 0 | dflash | 2 | 700 | 187.5 | 5.3 | 2.67 | 2.67x | 50.0% |"
    assert mean == "| mean | 0 | dflash |  |  |  |  | 2.67 | 2.67x | 50.0% |"
    sure = {**rows[1], "speedup": Estimate(8 / 3, (2.0, 4.0), 8)}
    assert "| 2.67x [2.00, 4.00; n = 8] |" in speed_table([sure], [])


@pytest.mark.parametrize(
    ("margins", "method", "line"),
    [
        ([], "plain", "No draft method was measured."),
        ([], "dflash", "Every completion is that of plain decoding, token for token."),
        (
            [0.000125],
            "dflash",
            "1 of 2 completions differs from plain decoding; the target's margin",
        ),
        (
            [0.5, 0.2],
            "dflash",
            "2 of 2 completions differ from plain decoding; the target's margin",
        ),
    ],
)
def test_divergences_in_words(margins: list[float], method: str, line: str) -> None:
    found = [{"logit_margin": margin} for margin in margins]
    row: ResultRow = {"method": method, "samples": 2, "divergences": found}
    said = divergence_line([row])
    assert said.startswith(line)
    if margins:
        assert said.endswith(f"at the first difference is at most {max(margins):.3g}.")
