"""Learning on the completions of a tiny target, from its samples to its promoted versions."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
    samples_of,
    settings_of,
)
from tests.training.pair import Pair

from blockdraft_drafter.checkpoint import load_drafter
from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_drafter.dflash.model import DFLASH
from blockdraft_drafter.learning.samples import TrainingSample
from blockdraft_drafter.learning.versions import VersionStore, copy_checkpoint
from blockdraft_drafter.sources import METHODS, AnyMethod
from blockdraft_training.errors import TrainingError
from blockdraft_training.loop.checkpoints import Checkpoints
from blockdraft_training.online.candidate import Candidate
from blockdraft_training.online.journal import Journal
from blockdraft_training.online.learner import Learner
from blockdraft_training.online.pace import Pace


@pytest.fixture(scope="module")
def recorded(pair: Pair) -> list[TrainingSample]:
    return samples_of(pair)


@pytest.fixture(scope="module")
def drafter(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("drafter")
    drafter_of(pair, directory)
    return directory


def model_of(pair: Pair, directory: Path, method: AnyMethod = DFLASH) -> DraftModel:
    model: DraftModel = load_drafter(method, directory, pair.checkpoint, dtype="float32").model
    return model


def weights(model: DraftModel) -> dict[str, Any]:
    return {
        ".".join(map(str, key)): np.asarray(value[...])
        for key, value in nnx.to_flat_state(nnx.state(model))
    }


def steps(count: int) -> Callable[[Learner], bool]:
    return lambda learner: learner.journal.total_steps >= count


def promoted(learner: Learner) -> bool:
    return learner.journal.promoted >= 1 or learner.journal.total_steps >= 200


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=[method.name for method in METHODS])
def test_a_drafter_gets_better_and_goes_on_after_an_interruption_or_from_what_people_choose(
    pair: Pair, recorded: list[TrainingSample], tmp_path: Path, method: AnyMethod
) -> None:
    drafter_of(pair, tmp_path / "drafter", method)
    start = model_of(pair, tmp_path / "drafter", method)
    record([projected(each, start) for each in recorded], tmp_path)
    settings = settings_of(pair, tmp_path, tmp_path / "drafter")
    began, seen = time.time(), list[Journal]()

    def watched(learner: Learner) -> bool:
        if not seen or not seen[-1].total_steps:
            seen.append(Journal.read(tmp_path))
        return promoted(learner)

    first = learn(settings, watched).journal
    # The first step is there before any checkpoint.
    noted = seen[-1]
    assert noted.total_steps == noted.steps == 1
    assert noted.loss is not None
    assert noted.stepped_at is not None
    assert began <= noted.stepped_at <= time.time()
    # Of a version that is to be surpassed, nothing has been evaluated.
    assert first.evaluations == 0
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
    loaded = load_drafter(method, store.path(2), pair.checkpoint, dtype="float32")
    assert loaded.fingerprint == version.fingerprint
    before, after = weights(start), weights(loaded.model)
    same = {name for name in before if np.array_equal(before[name], after[name])}
    fixed = {"fc", "hidden_norm"} if method is DFLASH else {"fc"}
    assert {name.split(".")[0] for name in same} == fixed
    # Another process goes on where this one was.
    made = first.steps
    again = learn(settings, steps(first.total_steps + 3)).journal
    assert again.promoted == first.promoted
    assert again.steps == made + 3
    assert store.roll_back("too bad").number == 1
    chosen = learn(settings, lambda learner: learner.journal.parent == 1).journal
    assert chosen.evaluations == chosen.steps == 0


def test_only_bad_steps_in_a_row_end_a_candidate(
    pair: Pair,
    recorded: list[TrainingSample],
    drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record(recorded, tmp_path)
    losses = iter([None, None, 1.0, None, None, None])
    monkeypatch.setattr(Candidate, "learn", lambda *_: next(losses))
    pauses: list[float] = []
    settings = settings_of(pair, tmp_path, drafter)
    learner = learn(settings, lambda learner: learner.journal.started_over > 0, sleep=pauses.append)
    assert learner.journal.thrown_away == 5
    assert (learner.journal.rate, pauses) == (0.5, [0.02])


@pytest.mark.slow
def test_bad_steps_are_thrown_away_and_the_candidate_is_given_up(
    pair: Pair, recorded: list[TrainingSample], drafter: Path, tmp_path: Path
) -> None:
    # Finite, but not what comes out of a layer.
    huge = np.full_like(recorded[0].features, 3e38)
    record([replace(each, features=huge) for each in recorded[:24]], tmp_path)
    pauses: list[float] = []
    journal = learn(
        settings_of(pair, tmp_path, drafter),
        lambda learner: learner.journal.started_over >= 2,
        sleep=pauses.append,
    ).journal
    assert journal.total_steps == journal.promoted == 0
    assert journal.thrown_away == 6
    assert journal.rate == 1 / 4
    assert pauses == sorted(pauses)
    [named] = VersionStore(tmp_path).list()
    assert named.kind == "shipped"


@pytest.mark.slow
def test_a_full_disk_is_waited_for(
    pair: Pair,
    recorded: list[TrainingSample],
    drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    record(recorded, tmp_path)
    full = itertools.count()

    def refusing(method: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            if next(full) < 4:
                raise error
            return method(*args, **kwargs)

        return refuse

    no_room = OSError(28, "No space left on device")
    monkeypatch.setattr(VersionStore, "add", refusing(VersionStore.add, no_room))
    no_room_either = TrainingError("no space left")
    monkeypatch.setattr(Checkpoints, "save", refusing(Checkpoints.save, no_room_either))
    caplog.set_level("INFO", logger="blockdraft_training")
    assert learn(settings_of(pair, tmp_path, drafter), promoted).journal.promoted == 1
    assert sum("cannot be written" in message for message in caplog.messages) == 1
    assert sum("can be written again" in message for message in caplog.messages) == 1


@pytest.mark.slow
def test_from_nothing(pair: Pair, recorded: list[TrainingSample], tmp_path: Path) -> None:
    record(recorded, tmp_path)
    learn(settings_of(pair, tmp_path, "auto", paying=1.3), promoted)
    store = VersionStore(tmp_path)
    first, second = store.list()[:2]
    assert (first.kind, first.state) == ("initialized", "candidate")
    assert (second.kind, second.state, second.parent) == ("learned", "promoted", 1)
    assert second.held_out_tau is not None
    assert second.held_out_tau > 1.3
    assert second.parent_held_out_tau == 1.3
    # Nothing was projected before: the projection learned too.
    before, after = (weights(model_of(pair, store.path(number))) for number in (1, 2))
    assert not np.array_equal(before["fc.weight"], after["fc.weight"])


def test_without_samples_it_waits(pair: Pair, drafter: Path, tmp_path: Path) -> None:
    waits: list[float] = []
    settings = settings_of(pair, tmp_path, drafter)
    learner = learn(settings, lambda _: len(waits) >= 3, sleep=waits.append)
    assert waits == [0.01] * 3
    assert learner.journal == Journal()


def test_a_version_that_cannot_be_loaded_is_waited_out(
    pair: Pair, drafter: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = VersionStore(tmp_path)
    for _ in range(2):
        added = store.add(partial(copy_checkpoint, drafter), kind="learned", fingerprint="f")
        store.promote(added.number)
    file = store.path(2) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            # As the drafter does, as soon as it looks at it.
            store.reject(2, "damaged")

    settings = settings_of(pair, tmp_path, drafter)
    learner = learn(settings, lambda _: len(waits) >= 5, sleep=wait)
    assert len(waits) == 5
    assert sum("version 2" in message for message in caplog.messages) == 1
    assert learner.journal == Journal()


def test_each_step_waits_for_decoding(
    pair: Pair,
    recorded: list[TrainingSample],
    drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record(recorded, tmp_path)
    order: list[str] = []

    def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            order.append(name)
            return method(*args)

        return noted

    monkeypatch.setattr(Candidate, "learn", noting("learn", Candidate.learn))
    monkeypatch.setattr(Pace, "wait", noting("wait", lambda *_: None))
    learn(settings_of(pair, tmp_path, drafter), steps(2))
    # It may wait once more before it hears that it shall stop.
    assert order[:4] == ["wait", "learn"] * 2
    assert order[4:] in ([], ["wait"])
