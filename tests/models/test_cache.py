"""What is kept on disk: found again, survived when damaged, made by one process for all."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from blockdraft_models.cache import default_cache_dir, kept_measurement
from blockdraft_models.executables import keep_executables

# Takes long enough that processes started together meet.
MEASURES = """
import random, sys, time
from pathlib import Path
from blockdraft_models.cache import kept_measurement

def measure():
    print("measured", file=sys.stderr)
    time.sleep(0.5)
    return random.random() + 1

print(kept_measurement(Path(sys.argv[1]), "key", measure))
"""


def unexpected() -> float:
    raise AssertionError("measured again")


def returning(value: float) -> Callable[[], float]:
    return lambda: value


def test_what_was_measured_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "kept.json"
    assert kept_measurement(path, "key", returning(1.25)) == 1.25
    assert kept_measurement(path, "key", unexpected) == 1.25
    assert kept_measurement(path, "other", returning(0.5)) == 0.5
    assert json.loads(path.read_text()) == {"key": 1.25, "other": 0.5}
    assert {each.name for each in path.parent.iterdir()} == {"kept.json", ".kept.json.lock"}


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b'{"key": 1.', b"\xff", b"[]", b'{"key": "1"}', b'{"key": NaN}', b'{"key": 0.0}'),
        *(b'{"key": -1.0}', b'{"key": true}', b'{"key": Infinity}'),
    ],
)
def test_a_damaged_file_is_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(content)
    assert kept_measurement(path, "key", returning(1.25)) == 1.25
    assert kept_measurement(path, "key", unexpected) == 1.25
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.message


def test_a_folder_that_cannot_be_used_is_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert kept_measurement(tmp_path / "file" / "kept.json", "key", returning(1.25)) == 1.25
    assert "cannot be kept" in caplog.messages[-1]


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURES, str(tmp_path / "kept.json")]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60) for process in started]
    assert len({out for out, _ in said}) == 1
    assert [err for _, err in said if err] == ["measured\n"]


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
