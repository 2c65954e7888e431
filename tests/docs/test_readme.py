"""What the README tells a newcomer to type, typed from top to bottom."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, read

pytestmark = [pytest.mark.slow, pytest.mark.smollm2, pytest.mark.timeout(1500)]
READY_SECONDS = 600.0
COMMAND_SECONDS = 600.0
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```", re.M | re.S)
# The tests run in what these make.
INSTALLS = ("pip", "source")


def environment() -> dict[str, str]:
    """Return the variables of a shell in which the project's environment is active."""
    told = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKDRAFT_")}
    # Programs are compiled as in production, not as the other tests are.
    told.pop("XLA_FLAGS", None)
    return {**told, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@contextmanager
def serving(command: list[str], folder: Path) -> Iterator[None]:
    """Run a service while the context is entered, from when it says that it is ready."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said: list[str] = []
    ready = threading.Event()

    def listen() -> None:
        for line in process.stderr or ():
            said.append(line)
            if line.startswith("blockdraft serves"):
                ready.set()

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        assert ready.wait(READY_SECONDS), "".join(said)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        listener.join()
        process.stderr.close()
    assert process.returncode == 130, "".join(said)


def run(command: list[str], folder: Path) -> str:
    """Run a command to its end; return what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        input="Hello\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}"
    return done.stdout


def test_everything_in_the_readme_runs(tmp_path: Path) -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    text = read("README.md")
    ran: list[str] = []
    service = None
    try:
        for language, block in FENCE.findall(text):
            if language == "python":
                run([sys.executable, "-c", block], tmp_path)
                continue
            for line in block.replace("\\\n", " ").splitlines():
                command = shlex.split(line)
                ran.append(" ".join(command[:2]))
                if command[0] in INSTALLS:
                    assert set(re.findall(r"\[(\w+)\]", line)) <= set(extras)
                elif command[:2] == ["blockdraft", "serve"]:
                    if service is not None:
                        service.__exit__(None, None, None)
                    service = serving(command, tmp_path)
                    service.__enter__()
                elif command[0] == "make":
                    printed = run(command, ROOT)
                    assert "The drafted tokens are identical to the plain ones." in printed
                else:
                    run(command, tmp_path)
    finally:
        if service is not None:
            service.__exit__(None, None, None)
    assert {"make demo", "blockdraft serve", "blockdraft chat", "blockdraft bench"} <= set(ran)
    assert ran.count("blockdraft train") == 2
