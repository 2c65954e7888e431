"""A process that is asked to stop while it loads does not go on loading first."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

# What stands for reading weights or compiling: it takes longer than anybody waits.
PROGRAM = """
import sys, time
from pathlib import Path
import blockdraft_{role}.app as app
from blockdraft_{role}.command import CONFIGURATION, run

def load(*arguments):
    Path({begun!r}).touch()
    time.sleep(600)

app.{loader} = load
sys.exit(CONFIGURATION.main(run))
"""


@pytest.mark.parametrize(
    ("role", "loader", "number"),
    [
        ("verifier", "load_target", signal.SIGTERM),
        ("drafter", "load_method", signal.SIGINT),
    ],
)
def test_a_stop_does_not_wait_for_the_loading(
    tmp_path: Path, role: str, loader: str, number: signal.Signals
) -> None:
    begun = tmp_path / "begun"
    program = textwrap.dedent(PROGRAM).format(role=role, loader=loader, begun=str(begun))
    command = [sys.executable, "-c", program, "--listen", f"unix:{tmp_path / 's'}"]
    with subprocess.Popen(command) as process:
        try:
            while not begun.exists():
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(number)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
