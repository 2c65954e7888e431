"""What is wrong with files is one line on stderr; for flags see tests/test_command_lines.py."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.drafter.process import write_tiny_target

from blockdraft_runtime.settings.drafter import NO_DRAFTER_STATUS


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "blockdraft_drafter", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "nowhere"), "'nowhere' is neither a directory"),
        (("--drafter", "random:x"), "the seed must be a whole number"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, str], message: str, tmp_path: Path) -> None:
    target = write_tiny_target(tmp_path / "target")
    places = (f"--listen=unix:{tmp_path}/s", f"--compilation-cache={tmp_path / 'xla'}")
    done = run(f"--target={target}", *places, *arguments)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1
    assert lines[0].startswith("blockdraft drafter: ")
    assert message in lines[0]


def test_finding_a_drafter_serves_nothing(tmp_path: Path) -> None:
    target = write_tiny_target(tmp_path / "target")
    unknown = run("--find", f"--target={target}")
    assert unknown.returncode == NO_DRAFTER_STATUS
    assert "no drafter is known for this target" in unknown.stderr
    assert not unknown.stdout
    found = run("--find", f"--target={target}", f"--drafter={target}")
    assert (found.returncode, found.stdout) == (0, f"{target}\n")
