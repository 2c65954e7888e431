"""`blockdraft demo` with a fake server in the place of `blockdraft serve`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.inference import TEXT
from tests.patience import PATIENCE_SECONDS

from blockdraft_client.cli import demo, local_server
from blockdraft_client.cli.main import main

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Return a function that replaces `blockdraft serve` by the fake in some mode."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAKE_CHILD_PID", str(tmp_path / "pid"))

    def replace(mode: str) -> None:
        command = (sys.executable, "-m", "tests.fakes.serve_inference", mode)
        monkeypatch.setattr(local_server, "SERVE_COMMAND", command)
        # The fake serves no model, so none needs to be on disk.
        monkeypatch.setattr(demo, "_fetch_target", lambda spec: None)

    return replace


def assert_nothing_is_left(tmp_path: Path) -> None:
    child = (tmp_path / "pid").read_text()
    deadline = time.monotonic() + PATIENCE_SECONDS
    # A killed process stays a zombie until whoever adopted it takes note.
    while _state(child)[:1] not in ("", "Z"):
        assert time.monotonic() < deadline, "the server's child is still running"
        time.sleep(0.05)


def _state(process_id: str) -> str:
    command = ["ps", "-o", "stat=", "-p", process_id]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def test_the_demo_measures_and_leaves_nothing(
    serve: Callable[[str], None], tmp_path: Path, capsys: Capture
) -> None:
    serve("serve")
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(TEXT)
    assert "tokens/s" in out
    assert "identical" in out
    assert "NOT trained" in out
    assert "starting server" in err
    assert_nothing_is_left(tmp_path)


def test_json_is_one_object_on_stdout(serve: Callable[[str], None], capsys: Capture) -> None:
    serve("serve")
    assert main(["demo", "--json", "--drafter", "x"]) == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert (value["completion"], value["identical"], value["trained"]) == (TEXT, True, False)
    assert value["acceptance_length"] == 2.5
    assert value["step_seconds"]["verify"] == 0.5
    assert TEXT in err


def test_a_server_that_dies_is_heard(
    serve: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    serve("die")
    assert main(["demo", "--model", "some-model", "--drafter", "some-drafter"]) == 1
    err = capsys.readouterr().err
    assert "the server ended with exit code 1" in err
    assert "cannot load the model" in err
    for flags in ("--target some-model", "--max-model-len 512", "--drafter some-drafter"):
        assert flags in err


@pytest.mark.parametrize(
    ("mode", "number", "code"),
    [("serve", signal.SIGTERM, 128 + signal.SIGTERM), ("stubborn", signal.SIGINT, 130)],
)
# Python drops an interrupt that arrives in a finalizer, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_demo_leaves_nothing(
    serve: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    number: signal.Signals,
    code: int,
) -> None:
    serve(mode)
    monkeypatch.setattr(local_server, "STOP_SECONDS", 0.5)
    monkeypatch.setattr(local_server, "FORCED_STOP_SECONDS", 0.5)
    monkeypatch.setattr(demo, "RUNS", 100_000)
    ended = threading.Event()
    interrupter = threading.Thread(
        target=_interrupt_when_started, args=(tmp_path / "pid", number, ended)
    )
    interrupter.start()
    try:
        assert main(["demo"]) == code
    finally:
        ended.set()
        interrupter.join()
    assert_nothing_is_left(tmp_path)


def _interrupt_when_started(
    child_pid: Path, number: signal.Signals, ended: threading.Event
) -> None:
    while not child_pid.exists():
        if ended.wait(0.05):
            return  # without having started, which the test says
    time.sleep(1.0)
    os.kill(os.getpid(), number)
    # Far longer than stopping takes: the interrupt was dropped, as a user would see, and try again.
    while not ended.wait(10.0):
        os.kill(os.getpid(), number)


def test_a_target_that_is_nowhere_is_said_so_at_once(capsys: Capture) -> None:
    assert main(["demo", "--model", "some-model"]) == 2
    assert "'some-model' is neither a directory" in capsys.readouterr().err
