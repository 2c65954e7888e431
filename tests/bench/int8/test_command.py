"""`blockdraft bench int8` on a tiny target, from the command line to the files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.bench.support import check_refusal, write_target
from tests.models.quantized import dequantized_params
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder

from blockdraft_bench.common.prompts import Prompt, PromptSet
from blockdraft_bench.engine import loading
from blockdraft_bench.engine.samples import Limits
from blockdraft_bench.int8.logit_error import LogitError, logit_error
from blockdraft_bench.int8.measure import measure_int8
from blockdraft_client.cli.main import main
from blockdraft_models.weights.loading import load_decoder

Run = Callable[..., int]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    write_target(path, num_layers=2)
    return path


@pytest.fixture
def bench(target: Path, workplace: Path) -> Run:
    """Run the command with the arguments that make it small, and these."""

    def call(*arguments: str) -> int:
        small = ["--target", str(target), "--dataset", "gsm8k", "mbpp"]
        small += ["--max-prompt-tokens", "64", "--max-tokens", "9", "--samples", "2"]
        return main(["bench", "int8", *small, *arguments])

    return call


def test_measures_and_reports(
    bench: Run, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--json") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    [output] = (workplace / "bench-results").iterdir()
    assert output.name.startswith("int8-")
    assert json.loads((output / "int8.json").read_text("utf-8")) == report
    assert report["benchmark"] == "int8"
    assert report["target"]["name"] == "tiny-llama"
    assert report["dtype"] == "float32"
    assert set(report["hardware"]) == {"cpu", "cores", "accelerator", "instructions"}
    assert [(row["dataset"], row["answers"]) for row in report["results"]] == [
        ("gsm8k", 2),
        ("mbpp", 2),
    ]
    overall = report["overall"]
    assert overall["answers"] == 4
    assert overall["positions"] == sum(row["positions"] for row in report["results"])
    assert overall["max_error"] == max(row["max_error"] for row in report["results"])
    for row in (overall, *report["results"]):
        assert 0 < row["positions"] <= 9 * row["answers"]
        assert 0 < row["relative_rms_error"] < 0.1
        assert 0 < row["mean_kl_nats"] < 0.01
        assert 0.5 < row["same_choice_share"] <= 1
    # Embedding and norms of width 32; matrices of two layers.
    rest, matrices = 4 * (260 * 32 + 5 * 32), 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64)
    scales = 2 * (32 + 16 + 16 + 32 + 64 + 64 + 32)
    assert report["float_weight_bytes"] == rest + 4 * matrices
    assert report["int8_weight_bytes"] == rest + matrices + 4 * scales
    table = (output / "int8.md").read_text("utf-8")
    assert table.count("\n|") == 5
    assert f"Weights: {report['float_weight_bytes'] / 1e6:.1f} MB before" in table


def test_errors_are_those_of_the_references(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PROMPT_STEP_TOKENS", 16)
    prompts = (Prompt("a", (5, 77, 130)), Prompt("b", tuple(range(40, 64))), Prompt("c", (9,)))
    sets = [PromptSet("x", prompts[:2]), PromptSet("y", prompts[2:])]
    done: list[str] = []
    capacity = loading.Capacity(1, 6 + 24, "float32")
    result = measure_int8(target, sets, Limits(6, frozenset()), capacity, on_answer=done.append)
    assert done == ["x", "x", "y"] * 2
    whole = load_decoder(target, dtype=jnp.float32)[0]
    rounded = load_decoder(target, dtype=jnp.float32, weights="int8")[0]
    reference = ReferenceDecoder(whole.config, params_from_decoder(whole))
    other = ReferenceDecoder(whole.config, dequantized_params(rounded))
    for prompt_set in sets:
        expected = LogitError()
        for prompt in prompt_set.prompts:
            tokens = list(prompt.token_ids)
            for _ in range(6):
                tokens.append(int(np.argmax(reference.logits(tokens)[-1])))
            chosen = slice(len(prompt.token_ids) - 1, -1)
            errors = logit_error(reference.logits(tokens)[chosen], other.logits(tokens)[chosen])
            expected = expected.plus(errors)
        found = result.errors[prompt_set.dataset]
        assert found.answers == expected.answers == len(prompt_set.prompts)
        assert found.positions == expected.positions == 6 * len(prompt_set.prompts)
        assert found.same_choices == expected.same_choices
        assert found.relative_rms == pytest.approx(expected.relative_rms, rel=1e-3)
        assert found.max_error == pytest.approx(expected.max_error, rel=1e-3)
        assert found.mean_kl_nats == pytest.approx(expected.mean_kl_nats, rel=1e-2)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--samples", "0"), 2, "--samples must be at least 1, got 0"),
        (("--max-tokens", "0"), 2, "--max-tokens must be at least 1"),
        (("--max-prompt-tokens", "0"), 2, "--max-prompt-tokens must be at least 1"),
        (("--dataset", "three.jsonl"), 2, "three.jsonl does not exist"),
        (("--max-prompt-tokens", "3"), 2, "cannot hold the chat template"),
        (("--target", "nowhere"), 1, "'nowhere' is no directory"),
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
