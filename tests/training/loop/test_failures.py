"""Runs that cannot go on, or must not begin: each says what is wrong."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tests.training.pair import Pair, reporter, write_rows

from blockdraft_models.errors import ModelError
from blockdraft_training.batches import batch_numbers
from blockdraft_training.corpus.rows import CorpusManifest, read_rows, write_manifest
from blockdraft_training.errors import CorpusError, DivergedError, TrainingError
from blockdraft_training.loop.held_out import split_validation
from blockdraft_training.loop.run import train
from blockdraft_training.methods.dflash import DFlashRecipe

STEPS = 4


def recipe(pair: Pair, output: Path, **changes: Any) -> DFlashRecipe:
    """Return a short run of one draft layer, which is soon compiled."""
    return DFlashRecipe(pair.settings(output, **{"layers": 1, "steps": STEPS, **changes}))


@pytest.fixture(scope="module")
def finished(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Copies a run that made all its steps."""
    output = tmp_path_factory.mktemp("finished")
    train(recipe(pair, output), reporter())

    def copy(directory: Path) -> Path:
        shutil.copytree(output, directory)
        return directory

    return copy


def test_a_loss_that_is_no_number_ends_the_run_with_the_last_good_checkpoint(
    pair: Pair, tmp_path: Path, finished: Callable[[Path], Path]
) -> None:
    kept = finished(tmp_path / "kept") / "features"
    poisoned_run = recipe(pair, tmp_path / "run", features=kept, batch_size=2, steps=7)
    settings = poisoned_run.settings
    rows = list(read_rows(pair.short))
    training, _ = split_validation(rows, settings.validation_rows)
    # A row of the epoch's last batch: none of the checkpoints before it has seen it.
    poisoned = int(batch_numbers(training, 2, seed=settings.seed, step=6)[0])
    lengths = [len(row.token_ids) for row in rows]
    begin = sum(lengths[:poisoned])
    features = np.memmap(kept / "features.bfloat16", "<u2", "r+", shape=(sum(lengths), 64))
    features[begin : begin + lengths[poisoned]] = 0x7FC0
    features.flush()
    with pytest.raises(DivergedError, match=r"step 7; .*checkpoints/6;"):
        train(poisoned_run, reporter())
    saved = ocp.StandardCheckpointer().restore(settings.output.resolve() / "checkpoints/6/default")
    assert int(saved["step"]) == 6
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(saved))


def test_a_learning_rate_beyond_reason_ends_the_run(pair: Pair, tmp_path: Path) -> None:
    beyond = recipe(pair, tmp_path, learning_rate=1e30, checkpoint_every=10)
    with pytest.raises(DivergedError, match=r"not a number at step 3; there is no checkpoint yet"):
        train(beyond, reporter())


def test_other_settings_need_another_directory(
    pair: Pair, tmp_path: Path, finished: Callable[[Path], Path]
) -> None:
    other = recipe(pair, finished(tmp_path / "run"), seed=3, block_size=5, feature_layers=(0, 2))
    message = r"run with other settings \(block_size, feature_layers, seed\)"
    with pytest.raises(TrainingError, match=message):
        train(other, reporter())


def test_reporting_and_saving_at_other_times_is_the_same_run(
    pair: Pair, tmp_path: Path, finished: Callable[[Path], Path]
) -> None:
    same = recipe(pair, finished(tmp_path / "run"), report_every=2, checkpoint_every=3)
    assert train(same, reporter()).history[-1]["step"] == STEPS


@pytest.mark.parametrize("missing", [False, True])
def test_a_damaged_checkpoint_is_named(
    pair: Pair, tmp_path: Path, finished: Callable[[Path], Path], missing: bool
) -> None:
    output = finished(tmp_path / "run")
    for path in (output / f"checkpoints/{STEPS}").rglob("*"):
        if path.is_file():
            kept = path.read_bytes()[: path.stat().st_size // 2]
            path.unlink() if missing else path.write_bytes(kept)
    with pytest.raises(TrainingError, match=rf"checkpoints/{STEPS} is damaged"):
        train(recipe(pair, output), reporter())


def test_a_full_disk_names_the_last_good_checkpoint(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = ocp.CheckpointManager.save

    def full(manager: ocp.CheckpointManager, step: int, **arguments: Any) -> Any:
        if step == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(manager, step, **arguments)

    made = recipe(pair, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(ocp.CheckpointManager, "save", full)
        message = r"checkpoint 4 cannot be written: .*No space left.*checkpoints/2"
        with pytest.raises(TrainingError, match=message):
            train(made, reporter())
    # With room again the run goes on from there.
    readings: list[int] = []
    train(made, reporter(lambda reading: readings.append(reading.step)))
    assert readings == [3, 4]


def test_a_corpus_of_another_target_is_refused(pair: Pair, tmp_path: Path) -> None:
    corpus = write_rows(pair.rows[:4], tmp_path / "corpus.jsonl")
    write_manifest(corpus, CorpusManifest("other", "f" * 16, 260, (), {}, 4, 4))
    with pytest.raises(CorpusError, match="made with target other"):
        train(recipe(pair, tmp_path / "run", corpus=(corpus,)), reporter())
    assert not (tmp_path / "run").exists()


def test_a_drafter_to_start_from_that_is_none(pair: Pair, tmp_path: Path) -> None:
    made = recipe(pair, tmp_path / "run", init=str(tmp_path / "nowhere"))
    with pytest.raises((ModelError, TrainingError), match="nowhere"):
        train(made, reporter())
