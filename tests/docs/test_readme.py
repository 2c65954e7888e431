"""What quickstart and README tell a newcomer to type, typed from top to bottom."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, read

pytestmark = [pytest.mark.slow, pytest.mark.smollm2, pytest.mark.timeout(1500)]
READY_SECONDS = 600.0
COMMAND_SECONDS = 600.0
FENCE = re.compile(r"^```(sh|python|py)\n(.*?)^```", re.M | re.S)
# The tests run in what these make.
INSTALLS = ("pip", "python3", "source")


def environment(command: list[str]) -> dict[str, str]:
    """Return the variables of a shell in which the project's environment is active."""
    told = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKDRAFT_")}
    # Programs are compiled as in production, but for the few steps of training.
    if command[:2] != ["blockdraft", "train"]:
        told.pop("XLA_FLAGS", None)
    return {
        **told,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        # What `make demo` serves, for all: other shapes of steps would take minutes to compile.
        "BLOCKDRAFT_SERVE_MAX_SEQUENCES": "1",
        "BLOCKDRAFT_SERVE_MAX_MODEL_LEN": "512",
        "BLOCKDRAFT_SERVE_MAX_STEP_TOKENS": "16",
        # As many as training needs; all made up at once, and given up when they get long.
        "BLOCKDRAFT_TRAIN_CORPUS_LIMIT": "8",
        "BLOCKDRAFT_TRAIN_CORPUS_BATCH_SIZE": "16",
        "BLOCKDRAFT_TRAIN_CORPUS_MAX_PROMPT_TOKENS": "128",
        "BLOCKDRAFT_TRAIN_DFLASH_BLOCKS_PER_SEQUENCE": "8",
    }


@contextmanager
def serving(command: list[str], folder: Path) -> Iterator[None]:
    """Run a service while the context is entered, from when it says that it is ready."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment(command), stderr=subprocess.PIPE, text=True
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
        env=environment(command),
        input="Hello\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}"
    return done.stdout


class Newcomer:
    """Types the commands of pages in one folder; a service stays up until another is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
        self.printed: dict[str, str] = {}  # by command
        self._serving: list[str] = []
        self._service: AbstractContextManager[None] = nullcontext()

    def type_all(self, page: str) -> None:
        for language, block in FENCE.findall(read(page)):
            if language != "sh":
                self.printed[block] = run([sys.executable, "-c", block], self.folder)
                continue
            for line in block.replace("\\\n", " ").splitlines():
                self.type_one(line)

    def type_one(self, line: str) -> None:
        command = shlex.split(line)
        if command[0] in INSTALLS:
            assert set(re.findall(r"\[(\w+)\]", line)) <= set(self.extras)
        elif command[:2] == ["blockdraft", "serve"]:
            if command != self._serving:
                self.stop()
                self._serving, self._service = command, serving(command, self.folder)
                self._service.__enter__()
        elif command[0] == "make":
            # Both pages begin with it.
            self.printed[line] = self.printed.get(line) or run(command, ROOT)
        else:
            self.printed[line] = run(command, self.folder)

    def stop(self) -> None:
        self._service.__exit__(None, None, None)
        self._service = nullcontext()


def test_everything_that_a_newcomer_reads_runs(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path)
    try:
        newcomer.type_all("docs/quickstart.md")
        newcomer.type_one("blockdraft serve --openai 127.0.0.1:8000")
        newcomer.type_all("docs/structured-output.md")
        newcomer.type_all("README.md")
    finally:
        newcomer.stop()
    printed = newcomer.printed
    assert "The drafted tokens are identical to the plain ones." in printed["make demo"]
    # Quickstart: both print the same text. The last line is of figures.
    drafted, plain = (text.splitlines()[:-1] for line, text in printed.items() if "--stats" in line)
    assert drafted == plain != []
    [year] = (text for line, text in printed.items() if "--regex" in line)
    assert re.search(r"^In \d{4}$", year, re.M)
    for line, text in printed.items():
        assert not line.startswith("curl") or '"choices"' in text, text
    kinds = [" ".join(line.split()[:2]) for line in printed]
    assert {"blockdraft chat", "blockdraft bench", "blockdraft generate"} <= set(kinds)
    assert kinds.count("blockdraft train") == 2
