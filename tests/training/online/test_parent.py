"""The version that learning begins with: named, made here, or promoted."""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from tests.training.online.traffic import drafter_of, settings_of
from tests.training.pair import Pair

from blockdraft_drafter.eagle3.model import EAGLE3
from blockdraft_drafter.learning.versions import VersionError, VersionKind, VersionStore
from blockdraft_drafter.sources import shipped_for
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.errors import TrainingError
from blockdraft_training.online.parent import Parent, find_parent
from blockdraft_training.online.settings import LearnSettings


@pytest.fixture(scope="module")
def given(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("drafter")
    drafter_of(pair, directory)
    return directory


def parent_of(pair: Pair, directory: Path, drafter: Path | str) -> Parent:
    settings = settings_of(pair, directory, drafter)
    return find_parent(VersionStore(directory), settings, pair.checkpoint)


def added(store: VersionStore, source: Path, kind: VersionKind, parent: int | None = None) -> int:
    def write(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)

    return store.add(write, kind=kind, fingerprint=f"{kind:x>16}", parent=parent).number


def test_a_drafter_that_is_named_serves(pair: Pair, given: Path, tmp_path: Path) -> None:
    parent, store = parent_of(pair, tmp_path, given), VersionStore(tmp_path)
    assert (parent.version.number, parent.serves, parent.from_nothing) == (1, True, False)
    store.promote(added(store, given, "learned", parent=1))
    parent = parent_of(pair, tmp_path, given)
    assert (parent.version.number, parent.serves, parent.from_nothing) == (2, True, False)
    assert parent.still_serves(store)
    store.roll_back("by hand")
    assert not parent.still_serves(store)


def test_what_is_made_here_serves_only_when_it_has_learned(
    pair: Pair, given: Path, tmp_path: Path
) -> None:
    store = VersionStore(tmp_path)
    added(store, given, "initialized")
    parent = parent_of(pair, tmp_path, "auto")
    assert (parent.version.number, parent.serves, parent.from_nothing) == (1, False, True)
    assert parent.still_serves(store)
    store.promote(added(store, given, "learned", parent=1))
    parent = parent_of(pair, tmp_path, "auto")
    assert (parent.version.number, parent.serves, parent.from_nothing) == (2, True, True)


def test_a_random_drafter_is_awaited_and_one_with_its_own_embedding_cannot_learn(
    pair: Pair, given: Path, tmp_path: Path
) -> None:
    with pytest.raises(VersionError, match="'random' is random"):
        parent_of(pair, tmp_path / "random", "random")
    shutil.copytree(given, tmp_path / "own")
    weights = load_file(tmp_path / "own" / "model.safetensors")
    weights["embed_tokens.weight"] = pair.decoder.embedding.table[...].__array__() + 1
    save_file(weights, tmp_path / "own" / "model.safetensors")
    with pytest.raises(TrainingError, match="has an embedding or a head of its own"):
        parent_of(pair, tmp_path / "learn", tmp_path / "own")


@pytest.mark.smollm2
def test_the_default_drafter_learns(tmp_path: Path) -> None:
    settings = LearnSettings(directory=tmp_path)
    checkpoint = load_checkpoint_config(resolve_target(settings.target))
    parent = find_parent(VersionStore(tmp_path), settings, checkpoint)
    assert (parent.serves, parent.from_nothing) == (True, False)
    source = shipped_for(EAGLE3, checkpoint)
    assert source is not None
    ours = VersionStore(tmp_path).path(1) / "model.safetensors"
    assert ours.read_bytes() == (source / "model.safetensors").read_bytes()


def test_who_has_everything_to_learn_learns_faster() -> None:
    unset = LearnSettings()
    assert unset.rate(from_nothing=True) > unset.rate(from_nothing=False)
    told = LearnSettings(learning_rate=1e-5)
    assert told.rate(from_nothing=True) == told.rate(from_nothing=False) == 1e-5
