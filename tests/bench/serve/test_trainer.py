"""Finding, stopping and continuing the trainer among the processes of a service."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.serve.trainer import Trainer

# As the supervisor does: its child computes for ever.
SUPERVISOR = """
import subprocess, sys
child = [sys.executable, "-c", "while True: pass", *sys.argv[1:]]
subprocess.run(child)
"""


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    yield from _service("blockdraft_training.online", "--target=x")


@pytest.fixture
def service_without() -> Iterator[Trainer]:
    yield from _service("--target=blockdraft_training.online")


def _service(*arguments: str) -> Iterator[Trainer]:
    command = (sys.executable, "-c", SUPERVISOR, *arguments)
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            yield Trainer(process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_it_stands_still_for_a_while_and_goes_on(trainer: Trainer) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _computes(trainer):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process = trainer._process()
    with trainer.standing_still():
        while _state(process) != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = trainer.cpu_seconds()
        time.sleep(0.1)
        assert trainer.cpu_seconds() == before
    while trainer.cpu_seconds() == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _computes(trainer: Trainer) -> bool:
    try:
        return trainer.cpu_seconds() > 0
    except BenchError:
        return False  # It has not been started yet.


def test_a_service_without_one_is_told_apart(service_without: Trainer) -> None:
    with pytest.raises(BenchError, match="no trainer"):
        service_without.cpu_seconds()
    with pytest.raises(BenchError, match="no trainer"), service_without.standing_still():
        pass
