"""Where things are kept on disk."""

from pathlib import Path

import jax
import pytest

from blockdraft_models.cache import default_cache_dir
from blockdraft_models.executables import keep_executables


def test_the_cache_directory_is_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", "/some/where")
    assert default_cache_dir() == Path("/some/where")
    monkeypatch.delenv("BLOCKDRAFT_CACHE")
    assert default_cache_dir() == Path.home() / ".cache" / "blockdraft"


@pytest.mark.usefixtures("jax_as_it_was", "one_core")
def test_what_is_compiled_for_other_cores_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    monkeypatch.delenv("NPROC", raising=False)
    keep_executables()
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "xla" / "1-cores")
    monkeypatch.setenv("NPROC", "3")
    keep_executables(tmp_path / "mine")
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "mine" / "3-cores")
