"""What `serve` looks for before it starts anything."""

import argparse
import importlib.util
import logging
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.command_lines import parse
from tests.drafter.process import write_tiny_target

from blockdraft_server.supervise import command
from blockdraft_server.supervise.command import CONFIGURATION, plan_for_target
from blockdraft_server.supervise.plan import ServePlan


def plan(folder: Path, *flags: str) -> ServePlan:
    settings = CONFIGURATION.resolve(parse(CONFIGURATION, *flags), {})
    return plan_for_target(settings, folder, os.environ)


def test_an_unknown_target_is_served_without_a_drafter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = str(write_tiny_target(tmp_path / "target"))
    found = plan(tmp_path, "--target", target)
    assert [child.name for child in found.children()] == ["server", "verifier"]
    assert "starting no drafter" in caplog.text
    # What was named is started, whether it can be loaded or not.
    monkeypatch.setattr(command, "_drafter_exists", lambda *_: False)
    assert plan(tmp_path, "--target", target, "--drafter", "random").drafter is not None
    # All chips are the verifier's.
    found = plan(tmp_path, "--target", target, "--tpu-host", "v5p-8")
    assert found.chips["verifier"]["TPU_VISIBLE_CHIPS"] == "0,1,2,3"
    with pytest.raises(ValueError, match="exclude each other"):
        plan(tmp_path, "--target", target, "--tpu-host", "v5p-8", "--tpu-split", "2+2")


def test_a_target_that_cannot_be_read_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_tiny_target(tmp_path / "target")
    failed = subprocess.CompletedProcess[bytes]((), 2)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(SystemExit) as ended:
        plan(tmp_path, "--target", str(target))
    assert ended.value.code == 2


def serve(*flags: str) -> int:
    return command.run(argparse.Namespace(**parse(CONFIGURATION, *flags)))


# What the trainer imports and nothing else here does; see the test below.
TRAINING = ("blockdraft_training", "optax", "orbax")


@pytest.mark.parametrize("package", TRAINING)
def test_a_missing_package_ends_the_start_with_one_line(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    monkeypatch.setattr(command, "configure_logging", lambda *_: None)
    caplog.set_level(logging.INFO)
    # Nor is the target looked for, which may have to be downloaded.
    missing = str(tmp_path / "no-target")
    assert serve("--learn", "--target", missing) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"--learn needs {package}, which is not installed: pip install 'blockdraft[train]'"
    ]
    # Without learning, nobody asks for it.
    for flags in ((), ("--learn", "--no-drafter")):
        caplog.clear()
        assert serve(*flags, "--target", missing) == 2
        assert package not in caplog.text
        assert missing in caplog.text


def test_what_is_needed_is_what_the_trainer_imports() -> None:
    extra = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {"blockdraft_training", *(re.split("[^a-z]", line)[0] for line in extra["train"])}
    code = "import sys, blockdraft_training.online.learner; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} & names == {*TRAINING}
