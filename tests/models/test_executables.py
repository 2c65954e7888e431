"""Where executables are kept."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from blockdraft_models.executables import keep_executables

SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(autouse=True)
def _settings_as_before() -> Iterator[None]:
    before = {name: jax.config.values[name] for name in SETTINGS}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_what_is_compiled_for_other_cores_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_core: None
) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    monkeypatch.delenv("NPROC", raising=False)
    keep_executables()
    assert jax.config.values[SETTINGS[0]] == str(tmp_path / "xla" / "1-cores")
    monkeypatch.setenv("NPROC", "3")
    keep_executables(tmp_path / "mine")
    assert jax.config.values[SETTINGS[0]] == str(tmp_path / "mine" / "3-cores")
