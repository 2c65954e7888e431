"""Mutated files: loaded, or refused with one clear line."""

from pathlib import Path

import pytest
from tools.fuzz.files import fuzz, tiny_files

FILES = 330


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "cache"))
    tally = fuzz(tiny_files(tmp_path), FILES, seed=1)
    assert not tally.bad, [each[:2] for each in tally.bad[:5]]
    for name in {ending.split(":")[0] for ending in tally.endings}:
        assert tally.endings[f"{name}: refused"] > 0
    loaded = sum(count for name, count in tally.endings.items() if name.endswith("loaded"))
    assert loaded > FILES // 20
