"""Fetching peers: once, anew when other versions are wanted, and what is said when it fails."""

import sys
from pathlib import Path

import pytest

from blockdraft_bench.errors import BenchError
from blockdraft_bench.peers import decoders
from blockdraft_bench.peers.decoders import LLAMA_CPP, TRANSFORMERS, fetch

VERSIONS = {"torch": "1"}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a peer fetched by a command that makes its folder and notes that it ran."""

    def commands(peer: str, folder: Path) -> list[list[str]]:
        return [[sys.executable, "-c", code, str(folder), str(log)], ["true", str(VERSIONS)]]

    log = tmp_path / "log"
    code = "import os, sys; os.mkdir(sys.argv[1]); open(sys.argv[2], 'a').write('fetched ')"
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(decoders, "_commands", commands)
    return log


def test_once_for_each_version(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch(TRANSFORMERS) == fetch(TRANSFORMERS) == tmp_path / "peers" / "transformers"
    assert log.read_text("utf-8") == "fetched "
    monkeypatch.setitem(VERSIONS, "torch", "2")
    fetch(TRANSFORMERS)
    assert log.read_text("utf-8") == "fetched fetched "


@pytest.mark.usefixtures("log")
def test_what_failed_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(decoders, "_commands", lambda peer, folder: [["true"], ["false"]])
        for _ in range(2):
            with pytest.raises(BenchError, match=r"llama\.cpp cannot be fetched: false failed"):
                fetch(LLAMA_CPP)
    assert fetch(LLAMA_CPP).is_dir()
