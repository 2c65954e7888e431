"""Names to checkpoints, and clear refusals."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.errors import ResolveError
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_models.weights.resolve import DEFAULT_GGUF, resolve_target


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
    (tmp_path / DEFAULT_GGUF).touch()
    assert resolve_target("smollm2-135m") == tmp_path / DEFAULT_GGUF


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


def test_hub_ids_of_a_filled_cache_need_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache's own layout: snapshots of links to blobs."""
    commit = "0" * 40
    repository = tmp_path / "models--org--name"
    for folder in ("refs", "blobs", f"snapshots/{commit}"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    written = tmp_path / "written"
    write_hf_checkpoint(random_decoder(tiny_config()), written)
    for file in written.iterdir():
        file.rename(repository / "blobs" / file.name)
        link = repository / "snapshots" / commit / file.name
        link.symlink_to(f"../../blobs/{file.name}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    path = resolve_target("org/name")

    assert path == repository / "snapshots" / commit
    assert load_checkpoint_config(path).config.vocab_size == 260
    with pytest.raises(ResolveError, match="cannot download 'org/other'"):
        resolve_target("org/other")
