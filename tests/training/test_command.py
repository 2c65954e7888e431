"""`blockdraft train` of a drafter, from its command line to its files."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress, TaskID
from tests.drafter.test_checkpoint import METHODS
from tests.training.pair import Pair

from blockdraft_drafter.checkpoint import load_drafter
from blockdraft_drafter.compiled.definition import MethodDefinition
from blockdraft_training import command
from blockdraft_training.loop.held_out import Acceptance
from blockdraft_training.loop.records import Reading, Throughput, progress_reporter


def train(*options: str, method: str = "dflash") -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([method, *options]))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("method", METHODS)
def test_a_corpus_becomes_a_drafter(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    output = tmp_path / "run"
    options = ["--corpus", str(pair.short), "--output", str(output), "--target", str(pair.target)]
    options += ["--feature-layers", "1,2", "--block-size", "4"]
    options += ["--steps", "2", "--batch-size", "4", "--blocks-per-sequence", "4"]
    options += ["--hot-vocabulary", "64", "--validation-rows", "2", "--report-every", "1"]
    assert train(*options, "--json", method=method) == 0
    streams = capsys.readouterr()
    result = json.loads(streams.out)
    assert result["drafter"] == str(output / "drafter")
    assert (result["steps"], result["rows"]) == (2, 14)
    assert result["acceptance_length"] >= 1
    assert "step 2/2" in streams.err
    definition: MethodDefinition[Any] = METHODS[method]
    drafter = load_drafter(definition, Path(result["drafter"]), pair.checkpoint, dtype="float32")
    config = drafter.model.config
    assert (config.block_size, config.target_layer_ids) == (4, (1, 2))
    assert drafter.draft_ids is not None
    assert len(drafter.draft_ids) == 64
    assert (output / "history.png").read_bytes().startswith(b"\x89PNG")
    # Once more: nothing is left to train.
    assert train(*options, method=method) == 0
    assert "trained on 14 completions, held-out τ" in capsys.readouterr().out


def test_what_is_wrong_is_said_without_a_trace(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = str(tmp_path / "none.jsonl")
    assert train("--corpus", corpus, "--output", str(tmp_path), "--target", str(pair.target)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("blockdraft train: ")
    assert corpus in line
    with pytest.raises(SystemExit) as caught:
        train("--corpus", corpus, "--output", str(tmp_path), "--block-size", "1")
    assert caught.value.code == 2
    assert "--block-size must be at least 2" in capsys.readouterr().err


def test_a_reading_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    reading = Reading(
        step=5,
        loss=1.5,
        accuracy=(0.5, 0.25),
        acceptance_length=1.75,
        seconds=60.0,
        throughput=Throughput(1000.0, 500.0),
        validation=Acceptance(2.0, {"math": 2.5}, (0.5, 0.25)),
    )
    with progress_reporter() as report:
        report.features(1, 2)
        report.reading(reading, 10)
    line = " ".join(capsys.readouterr().err.split())
    for words in ("step 5/10", "loss 1.500", "τ 1.75", "0.50 0.25", "500 tokens/s", "1 min"):
        assert words in line
    assert "held out τ 2.00 (math 2.50)" in line


def test_each_phase_has_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[str] = []
    add = Progress.add_task

    def record(progress: Progress, description: str, **options: Any) -> TaskID:
        added.append(description)
        return add(progress, description, **options)

    monkeypatch.setattr(Progress, "add_task", record)
    with progress_reporter() as report:
        for done in range(1, 4):
            report.features(done, 3)
        for step in range(1, 4):
            report.reading(Reading(step, 1.0, (0.5,), 1.5, 1.0, Throughput(1.0, 1.0)), 3)
    assert added == ["features", "training"]
