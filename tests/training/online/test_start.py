"""What learning begins with: a drafter that is given, one that is made here, a version."""

import shutil
from pathlib import Path

import pytest
from tests.training.online.traffic import drafter_of, settings_of
from tests.training.pair import Pair

from blockdraft_drafter.dflash.model import DFLASH
from blockdraft_drafter.learning.versions import VersionKind, VersionStore
from blockdraft_drafter.sources import shipped_for
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.online.settings import LearnSettings
from blockdraft_training.online.start import Start, find_start


@pytest.fixture(scope="module")
def given(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("drafter")
    drafter_of(pair, directory)
    return directory


def found(pair: Pair, directory: Path, drafter: Path | str) -> Start:
    settings = settings_of(pair, directory, drafter)
    recipe = DFlashRecipe(settings.as_run(directory))
    return find_start(VersionStore(directory), settings, recipe, pair.checkpoint)


def added(store: VersionStore, source: Path, kind: VersionKind, parent: int | None = None) -> int:
    def write(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)

    return store.add(write, kind=kind, fingerprint=f"{kind:x>16}", parent=parent).number


def test_a_drafter_that_is_given_serves(pair: Pair, given: Path, tmp_path: Path) -> None:
    start, store = found(pair, tmp_path, given), VersionStore(tmp_path)
    assert (start.version, start.serves, start.from_nothing) == (None, True, False)
    assert start.as_version(store) == 1
    store.promote(added(store, given, "learned"))
    start = found(pair, tmp_path, given)
    assert (start.version, start.serves, start.from_nothing) == (2, True, False)


def test_what_is_made_here_serves_only_when_it_has_learned(
    pair: Pair, given: Path, tmp_path: Path
) -> None:
    store = VersionStore(tmp_path)
    added(store, given, "initialized")
    start = found(pair, tmp_path, "auto")
    assert (start.version, start.serves, start.from_nothing) == (1, False, True)
    store.promote(added(store, given, "learned", parent=1))
    start = found(pair, tmp_path, "auto")
    assert (start.version, start.serves, start.from_nothing) == (2, True, True)


@pytest.mark.smollm2
def test_of_what_ships_the_one_that_can_learn_is_taken(tmp_path: Path) -> None:
    settings = LearnSettings(directory=tmp_path)
    checkpoint = load_checkpoint_config(resolve_target(settings.target))
    recipe = DFlashRecipe(settings.as_run(tmp_path))
    start = find_start(VersionStore(tmp_path), settings, recipe, checkpoint)
    assert (start.serves, start.from_nothing) == (True, False)
    assert start.source == shipped_for(DFLASH, checkpoint)


def test_who_has_everything_to_learn_learns_faster() -> None:
    unset = LearnSettings()
    assert unset.rate(from_nothing=True) > unset.rate(from_nothing=False)
    told = LearnSettings(learning_rate=1e-5)
    assert told.rate(from_nothing=True) == told.rate(from_nothing=False) == 1e-5
