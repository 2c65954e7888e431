"""Marks of who tries a version, also when whoever made one is killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from blockdraft_drafter.learning import trials
from blockdraft_drafter.learning.versions import VersionError

# Begins a trial and lives until its stdin is closed, or dies at once.
TRIES = """
import os, signal, sys
from pathlib import Path
from blockdraft_drafter.learning import trials

trial = trials.begin(Path(sys.argv[1]))
if sys.argv[2] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
print("tries", flush=True)
sys.stdin.read()
"""


def die_trying(folder: Path) -> None:
    """Have a process killed while it tries the version in a folder."""
    done = subprocess.run([sys.executable, "-c", TRIES, str(folder), "dies"], check=False)
    assert done.returncode == -9


def marks(folder: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in folder.iterdir())


def test_who_lives_is_not_blamed_and_who_dies_is(tmp_path: Path) -> None:
    for _ in range(5):
        trials.begin(tmp_path).end()
    assert marks(tmp_path) == []
    # Any number may try it at one time.
    held = [trials.begin(tmp_path) for _ in range(trials.MOST_DEATHS + 1)]
    die_trying(tmp_path)
    trials.begin(tmp_path).end()
    die_trying(tmp_path)
    with pytest.raises(VersionError, match="2 processes died while they tried it"):
        trials.begin(tmp_path)
    for trial in held:
        trial.end()
        trial.end()
    assert marks(tmp_path) == ["trial", "trial"]
    trials.forget(tmp_path)
    assert marks(tmp_path) == []


def test_who_tries_it_in_another_process_is_not_dead(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRIES, str(tmp_path), "lives"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"tries\n"
        die_trying(tmp_path)
        trials.begin(tmp_path).end()
        trials.forget(tmp_path)
        assert marks(tmp_path) == ["trial"]
        other.kill()
    die_trying(tmp_path)
    with pytest.raises(VersionError, match="2 processes died"):
        trials.begin(tmp_path)


def test_what_has_served_is_not_tried_again(tmp_path: Path) -> None:
    die_trying(tmp_path)
    trial = trials.begin(tmp_path)
    assert not trials.has_served(tmp_path)
    trials.confirm(tmp_path)
    trial.end()
    assert trials.has_served(tmp_path)
    for _ in range(trials.MOST_DEATHS):
        die_trying(tmp_path)
    assert marks(tmp_path) == ["served"]


def test_without_room_for_a_mark_it_is_tried_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trials, "to_disk", full)
    trials.begin(tmp_path).end()
    assert "tried without a mark" in caplog.text
    assert marks(tmp_path) == []
    with pytest.raises(OSError, match="No space"):
        trials.confirm(tmp_path)
