"""`blockdraft learn list`, `promote`, `rollback` and `clear`."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.drafter.learning.kept import Kept, sample

from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_training import learn_command
from blockdraft_training.online.journal import Journal


def learn(*words: str, directory: Path) -> int:
    parser = argparse.ArgumentParser()
    learn_command.add_arguments(parser)
    return learn_command.run(parser.parse_args([*words, "--directory", str(directory)]))


def _write(folder: Path) -> None:
    (folder / "config.json").write_text("{}", encoding="utf-8")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = VersionStore(tmp_path)
    for number, tau in ((1, None), (2, 1.75)):
        store.add(
            _write,
            kind="learned" if tau else "shipped",
            fingerprint=f"f{number}",
            held_out_tau=tau,
        )
        store.promote(number, f"reason {number}")
    Kept(tmp_path / "samples", 1 << 30).add(sample(0))
    Journal(total_steps=7, promoted=1).write(tmp_path)
    return tmp_path


def test_versions_are_listed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert learn("list", directory=directory) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "1 training samples" in lines[0]
    assert "7 steps of learning" in lines[1]
    assert "1 promoted" in lines[1]
    assert lines[2].split()[:1] == ["1"]
    assert lines[3].split()[:2] == ["*", "2"]
    assert "τ 1.75  reason 2" in lines[3]
    assert learn("list", "--json", directory=directory) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["current"] == 2
    assert [version["number"] for version in told["versions"]] == [1, 2]
    assert told["samples"]["count"] == 1
    assert told["learning"]["total_steps"] == 7


def test_one_goes_back_and_forth(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, number in ((["rollback"], 1), (["promote", "2"], 2)):
        assert learn(*command, directory=directory) == 0
        assert capsys.readouterr().out == f"version {number} serves\n"
        assert VersionStore(directory).promoted()[0].number == number


def test_samples_and_versions_are_deleted(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert learn("clear", directory=directory) == 0
    assert "1 training samples deleted" in capsys.readouterr().out
    assert VersionStore(directory).current() is not None
    assert learn("clear", "--versions", directory=directory) == 0
    assert "0 training samples deleted, and the versions" in capsys.readouterr().out
    assert not VersionStore(directory).list()
    assert learn("list", directory=directory) == 0


def test_what_cannot_be_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert learn("promote", "9", directory=tmp_path) == 1
    assert learn("rollback", directory=tmp_path) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("blockdraft learn: version 9 cannot be read")
    assert lines[1] == "blockdraft learn: no version was promoted"


def test_a_target_that_is_not_there_ends_learning_for_good(
    tmp_path: Path,
) -> None:
    words = [sys.executable, "-m", "blockdraft_training.online", "--target", str(tmp_path / "no")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "blockdraft learn run: " in ended.stderr
    assert "Traceback" not in ended.stderr
