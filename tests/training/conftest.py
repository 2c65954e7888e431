"""A target and its answers, made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.training.pair import Pair, make_pair

from blockdraft_training.loop import trainer


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def known_peak() -> Iterator[None]:
    """Spares runs the measurement of the machine, which takes longer than they do."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer, "matmul_peak", lambda dtype: 1e9)
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jax_as_it_was: None) -> None:
    """Keeps the command's compilation cache out of everybody else's."""
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "cache"))
