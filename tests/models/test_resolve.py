"""Names to checkpoints, and clear refusals."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from blockdraft_models import embedded
from blockdraft_models.errors import ResolveError
from blockdraft_models.resolve import resolve_target


def test_what_exists_on_disk_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert resolve_target(str(file)) == file
    assert resolve_target(str(tmp_path)) == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve_target("org/name") == Path("org/name")


def test_the_default_target_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    (tmp_path / embedded.GGUF_NAME).touch()
    assert resolve_target("smollm2-135m") == tmp_path / embedded.GGUF_NAME


@pytest.mark.parametrize("spec", ["", "smollm3", "a/b/c", "missing/model.gguf", "/no/such/dir"])
def test_unknown_names_are_refused(spec: str) -> None:
    with pytest.raises(ResolveError, match="no directory, "):
        resolve_target(spec or "no-such-name")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ResolveError, match=r"not a \.gguf file"):
        resolve_target(str(tmp_path / "model.bin"))


def test_hub_ids_fetch_no_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, list[str]]] = []

    def snapshot_download(repository: str, *, allow_patterns: list[str]) -> str:
        calls.append((repository, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve_target("org/name") == tmp_path
    assert calls == [("org/name", ["*.safetensors", "*.json", "*.jinja"])]


def test_hub_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(repository: str, **_: Any) -> str:
        raise OSError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ResolveError, match=r"cannot download 'org/name' .* offline"):
        resolve_target("org/name")
