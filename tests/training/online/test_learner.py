"""Learning on the answers of a tiny target, from its recordings to its promoted versions."""

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx
from tests.training.online.traffic import (
    drafter_of,
    learn,
    projected,
    record,
    recordings_of,
    settings_of,
)
from tests.training.pair import Pair

from blockdraft_drafter.checkpoint import load_drafter
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_drafter.learning.journal import Journal
from blockdraft_drafter.learning.recordings import Recording
from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_training.errors import TrainingError
from blockdraft_training.loop.checkpoints import Checkpoints
from blockdraft_training.online import candidate as candidates
from blockdraft_training.online.learner import Learner
from blockdraft_training.online.pace import Pace


@pytest.fixture(scope="module")
def recorded(pair: Pair) -> list[Recording]:
    return recordings_of(pair)


@pytest.fixture(scope="module")
def drafter(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DFlash]:
    directory = tmp_path_factory.mktemp("drafter")
    drafter_of(pair, directory)
    loaded = load_drafter(DFLASH, directory, pair.checkpoint, dtype="float32")
    return directory, loaded.model


def weights(model: DFlash) -> dict[str, Any]:
    return {
        ".".join(map(str, key)): np.asarray(value[...])
        for key, value in nnx.to_flat_state(nnx.state(model))
    }


def steps(count: int) -> Callable[[Learner], bool]:
    return lambda learner: learner.journal.total_steps >= count


def promoted(count: int) -> Callable[[Learner], bool]:
    return lambda learner: learner.journal.promoted >= count or learner.journal.total_steps >= 200


@pytest.mark.slow
def test_a_drafter_gets_better_and_goes_on_after_an_interruption(
    pair: Pair, recorded: list[Recording], drafter: tuple[Path, DFlash], tmp_path: Path
) -> None:
    path, start = drafter
    record([projected(each, start) for each in recorded], tmp_path)
    settings = settings_of(pair, tmp_path, path)
    first = learn(settings, promoted(1)).journal
    store = VersionStore(tmp_path)
    base, version = store.list()
    assert (base.number, base.kind, base.state) == (1, "shipped", "promoted")
    assert version == store.current()
    assert (version.kind, version.state, version.parent) == ("learned", "promoted", 1)
    assert version.held_out_tau is not None
    assert version.parent_held_out_tau is not None
    assert version.held_out_tau > 1.02 * version.parent_held_out_tau
    assert version.confidence is not None
    assert version.confidence > 0.95
    # It is what its file says, and only the projection is as it was: features went through it.
    loaded = load_drafter(DFLASH, store.path(2), pair.checkpoint, dtype="float32")
    assert loaded.fingerprint == version.fingerprint
    before, after = weights(start), weights(loaded.model)
    same = {name for name in before if np.array_equal(before[name], after[name])}
    assert {name.split(".")[0] for name in same} == {"fc", "hidden_norm"}
    # Another process goes on where this one was.
    made = first.steps
    again = learn(settings, steps(first.total_steps + 3)).journal
    assert again.promoted == first.promoted
    assert again.steps == made + 3


@pytest.mark.slow
def test_what_is_learned_can_be_watched(
    pair: Pair, recorded: list[Recording], drafter: tuple[Path, DFlash], tmp_path: Path
) -> None:
    record(recorded, tmp_path)
    settings = settings_of(
        pair, tmp_path, drafter[0], first_look=1000, checkpoint_every=1000, warmup_steps=1
    )
    # The first step is there before any checkpoint.
    began, seen = time.time(), []

    def noted(learner: Learner) -> bool:
        seen.append(Journal.read(tmp_path) or Journal())
        return seen[-1].total_steps > 0 or learner.journal.total_steps >= 200

    learn(settings, noted)
    journal = seen[-1]
    assert journal.total_steps == journal.steps == 1
    assert journal.loss is not None
    assert journal.stepped_at is not None
    assert began <= journal.stepped_at <= time.time()


@pytest.mark.slow
def test_bad_steps_are_thrown_away_and_the_candidate_is_given_up(
    pair: Pair,
    recorded: list[Recording],
    drafter: tuple[Path, DFlash],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, _ = drafter
    # Finite, but not what comes out of a layer.
    for each in recorded[:24]:
        huge = np.full_like(each.features, 3e38)
        record([_with_features(each, huge)], tmp_path)
    pauses: list[float] = []
    settings = settings_of(pair, tmp_path, path)
    learner = learn(
        settings, lambda learner: learner.journal.started_over >= 2, sleep=pauses.append
    )
    journal = learner.journal
    assert journal.total_steps == journal.promoted == 0
    assert journal.thrown_away == 6
    assert journal.rate == 1 / 64
    assert pauses == sorted(pauses)
    assert VersionStore(tmp_path).list() == []


def _with_features(recording: Recording, features: Any) -> Recording:
    return Recording(
        recording.token_ids,
        features,
        recording.target_fingerprint,
        recording.feature_form,
        recording.layer_ids,
        recording.answer_start,
    )


@pytest.mark.slow
def test_a_full_disk_is_waited_for(
    pair: Pair,
    recorded: list[Recording],
    drafter: tuple[Path, DFlash],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, _ = drafter
    record(recorded, tmp_path)
    full = itertools.count()
    add, save = VersionStore.add, Checkpoints.save

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if next(full) < 4:
            raise OSError(28, "No space left on device")
        return add(*args, **kwargs)

    def refuse_too(*args: Any) -> None:
        if next(full) < 4:
            raise TrainingError("no space left")
        save(*args)

    monkeypatch.setattr(VersionStore, "add", refuse)
    monkeypatch.setattr(Checkpoints, "save", refuse_too)
    caplog.set_level("INFO", logger="blockdraft_training")
    learner = learn(settings_of(pair, tmp_path, path), promoted(1))
    assert learner.journal.promoted == 1
    told = [each.message for each in caplog.records if "cannot be written" in each.message]
    assert len(told) == 1


@pytest.mark.slow
def test_a_version_that_people_choose_is_learned_from(
    pair: Pair, recorded: list[Recording], drafter: tuple[Path, DFlash], tmp_path: Path
) -> None:
    path, _ = drafter
    record(recorded, tmp_path)
    settings = settings_of(pair, tmp_path, path)
    learn(settings, promoted(2))
    store = VersionStore(tmp_path)
    current = store.current()
    assert current is not None
    assert store.roll_back("too bad").number == current.number - 1
    journal = learn(settings, lambda learner: learner.journal.parent == current.number - 1).journal
    assert journal.looks == 0


@pytest.mark.slow
def test_from_nothing(pair: Pair, recorded: list[Recording], tmp_path: Path) -> None:
    record(recorded, tmp_path)
    learn(settings_of(pair, tmp_path, "auto", paying=1.3), promoted(1))
    first, second = VersionStore(tmp_path).list()[:2]
    assert (first.kind, first.state) == ("initialized", "candidate")
    assert (second.kind, second.state, second.parent) == ("learned", "promoted", 1)
    assert second.held_out_tau is not None
    assert second.held_out_tau > 1.3
    assert second.parent_held_out_tau == 1.3
    # Nothing was projected before: the projection learned too.
    before, after = (
        weights(
            load_drafter(
                DFLASH, VersionStore(tmp_path).path(number), pair.checkpoint, dtype="float32"
            ).model
        )
        for number in (1, 2)
    )
    assert not np.array_equal(before["fc.weight"], after["fc.weight"])


def test_without_recordings_it_waits(
    pair: Pair, drafter: tuple[Path, DFlash], tmp_path: Path
) -> None:
    waits: list[float] = []
    learner = learn(
        settings_of(pair, tmp_path, drafter[0]), lambda _: len(waits) >= 3, sleep=waits.append
    )
    assert waits == [0.01] * 3
    assert learner.journal == Journal()


def test_a_version_that_cannot_be_loaded_is_waited_out(
    pair: Pair,
    drafter: tuple[Path, DFlash],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = VersionStore(tmp_path)
    for kept in (None, -9):

        def write(folder: Path, kept: int | None = kept) -> None:
            shutil.copyfile(drafter[0] / "config.json", folder / "config.json")
            weights = (drafter[0] / "model.safetensors").read_bytes()
            (folder / "model.safetensors").write_bytes(weights[:kept])

        store.promote(store.add(write, kind="learned", fingerprint="f").number)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            # As the drafter does, as soon as it looks at it.
            store.reject(2, "damaged")

    learner = learn(settings_of(pair, tmp_path, drafter[0]), lambda _: len(waits) >= 5, sleep=wait)
    assert len(waits) == 5
    told = [each.message for each in caplog.records if "version 2" in each.message]
    assert len(told) == 1
    assert learner.journal == Journal()


def test_an_unfinished_step_yields(
    pair: Pair,
    recorded: list[Recording],
    drafter: tuple[Path, DFlash],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record(recorded, tmp_path)
    settings = settings_of(pair, tmp_path, drafter[0])
    order: list[str] = []

    def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            order.append(name)
            return method(*args)

        return noted

    candidate = candidates.Candidate
    monkeypatch.setattr(candidate, "add", noting("add", candidate.add))
    monkeypatch.setattr(candidate, "finish", noting("step", candidate.finish))
    monkeypatch.setattr(Pace, "wait", noting("wait", lambda *_: None))
    learn(settings, steps(2))
    # It may wait once more before it hears that it shall stop.
    assert order[:10] == ["wait", "add", "wait", "add", "step"] * 2
    assert order[10:] in ([], ["wait"])


def test_a_drafter_that_cannot_learn_ends_it(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="'random' is random"):
        learn(settings_of(pair, tmp_path, "random"), lambda _: False)
