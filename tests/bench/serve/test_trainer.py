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

from blockdraft_bench.errors import BenchError
from blockdraft_bench.serve.service import Trainer

# As the supervisor does: its child computes for ever.
SUPERVISOR = """
import subprocess, sys
child = [sys.executable, "-c", "while True: pass", *sys.argv[1:]]
subprocess.run(child)
"""


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    command = (sys.executable, "-c", SUPERVISOR, "blockdraft_training.online", "--target=x")
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
    process = trainer.process_id()
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


def test_what_a_trainer_and_its_descendants_have_used(tmp_path: Path) -> None:
    def process(number: int, parent: int, user: int, system: int, *command: str) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        before = " ".join(["S", str(parent), *["0"] * 9])
        text = f"{number} (a (name) ) {before} {user} {system} 0 0"
        (folder / "stat").write_text(text)
        (folder / "cmdline").write_text("\0".join(command))

    module = "blockdraft_training.online"
    process(50, 1, 9, 9, "serve", module)
    process(42, 50, 7, 7, "python", f"--target={module}")
    process(45, 50, 100, 20, "python", "-m", module)
    process(40, 45, 30, 0)  # a child with a lower number
    process(60, 40, 0, 50)  # a grandchild
    process(70, 1, 1000, 1000, module)  # somebody else's
    (tmp_path / "self").mkdir()
    trainer = Trainer(50, tmp_path)
    assert trainer.process_id() == 45
    # 200 ticks of the usual hundredth of a second.
    assert trainer.cpu_seconds() == pytest.approx(2.0)
    for without in (Trainer(99, tmp_path), Trainer(42, tmp_path)):
        with pytest.raises(BenchError, match="no trainer"):
            without.cpu_seconds()
    with pytest.raises(BenchError, match="no trainer"), without.standing_still():
        pass
