"""A target and its completions, made once."""

from pathlib import Path

import pytest
from tests.training.pair import Pair, make_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jax_as_it_was: None) -> None:
    """Keeps the command's compilation cache out of everybody else's."""
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "cache"))
