"""Tries grammars in a process of its own: a few take minutes and gigabytes, and cannot be stopped.

`GrammarTrial` is the verifier's side, `main` the other. The process is told first how to make the
tokenizer, then one grammar a line; it writes a line for each, with what is wrong with it or null.
A timer of the system ends it when a grammar takes too long, and a limit when it takes too much.
"""

import contextlib
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import IO

from llguidance import LLTokenizer

from blockdraft_runtime.status import ServiceError, invalid_argument
from blockdraft_verifier.grammars.compilation import (
    FIELD,
    STACK_BYTES,
    check_ends,
    compiled,
    invalid,
    overloaded,
)

# Time of a processor, so that other load on the machine does not count.
TRIAL_SECONDS = 2.0
# Memory that a grammar may take; no real one takes 64 MiB.
TRIAL_MIB = 512


class GrammarTrial:
    """Tries grammars, one after another; for one thread at a time."""

    def __init__(
        self,
        tokenizer: Callable[[], LLTokenizer],
        seconds: float = TRIAL_SECONDS,
        mib: int = TRIAL_MIB,
    ) -> None:
        """Try with the tokenizer that is returned in the other process; it starts when needed."""
        self._setup = tokenizer, seconds, mib
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, grammar: str) -> None:
        """Raise a `ServiceError` unless a grammar compiles within the limits."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start()
        asks, answers = _pipes(process)
        with contextlib.suppress(BrokenPipeError):
            asks.write(json.dumps(grammar).encode() + b"\n")
            asks.flush()
        if not (line := answers.readline()):
            self._process = None
            raise self._exceeded(process.wait())
        if (wrong := json.loads(line)) is not None:
            raise invalid_argument(FIELD, wrong)

    def _exceeded(self, status: int) -> ServiceError:
        """Return the error for a grammar with which the process ended in this status."""
        if status == -signal.SIGPROF:
            return invalid(f"it did not compile within {self._seconds} s")
        if status == -signal.SIGSEGV:
            return invalid("it did not compile without a fault of the compiler")
        if status == -signal.SIGKILL:
            return overloaded("the system ended the compiler of this one")
        return invalid("it did not compile in the memory that it may take")

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        # It ends with its input.
        weakref.finalize(self, _end, process)
        asks, answers = _pipes(process)
        asks.write(pickle.dumps(self._setup))
        asks.flush()
        if not answers.readline():
            raise RuntimeError(f"the trial of grammars did not start: status {process.wait()}")
        self._process = process
        return process


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _end(process: subprocess.Popen[bytes]) -> None:
    asks, answers = _pipes(process)
    with contextlib.suppress(BrokenPipeError):
        asks.close()
    answers.close()
    process.wait()


def main() -> None:
    """Serve standard input."""
    # Ctrl-C reaches both processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    tokenizer, seconds, mib = pickle.load(sys.stdin.buffer)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_try_all, args=(tokenizer(), seconds, mib))
    thread.start()
    thread.join()


def _try_all(tokenizer: LLTokenizer, seconds: float, mib: int) -> None:
    if sys.platform == "linux":
        # Elsewhere the limit does nothing.
        with open("/proc/self/statm") as sizes:
            max_bytes = int(sizes.read().split()[0]) * resource.getpagesize() + (mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    print("ready", flush=True)
    # The library prints where memory ends, which the caller knows anyway.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            compiled(grammar := json.loads(line), tokenizer)
            check_ends(grammar, tokenizer)
            wrong = None
        except ServiceError as error:
            wrong = error.message
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(wrong), flush=True)


if __name__ == "__main__":
    main()
