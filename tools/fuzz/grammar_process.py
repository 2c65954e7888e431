"""Sends grammars that are nearly right to a process, and judges what comes back."""

import contextlib
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from tools.fuzz.grammars import grammar_text

ROOT = Path(__file__).parents[2]
# Longer than any grammar takes, however busy the machine is: what has no end by then hangs.
HANG_SECONDS = 120.0
SLOW_SECONDS = 1.0
_START_SECONDS = 60.0
_SHOWN = 2000


class Slowest(NamedTuple):
    """The grammar for which an operation took most processor time."""

    seconds: float
    text: str


@dataclass
class Tally:
    """What came of the grammars."""

    endings: Counter[str] = field(default_factory=Counter)  # how often each kind ended in each way
    slowest: dict[str, Slowest] = field(default_factory=dict)  # by operation
    slow: Counter[str] = field(default_factory=Counter)  # by operation, how often above the limit
    mib: int = 0  # most that a process took
    # What must not happen, with the grammar that made it happen.
    bad: list[tuple[str, str]] = field(default_factory=list)


class GrammarProcess:
    """A process that follows grammars; a context manager around it. See `grammar_walk`."""

    def __init__(self, target: str | None) -> None:
        """Start it, with the tokenizer of a target or with a tiny one."""
        command = [
            sys.executable,
            "-m",
            "tools.fuzz.grammar_walk",
            *([target] if target else []),
        ]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "GrammarProcess":
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        assert self._process.stdin is not None
        self.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """Let it die."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def follow(self, text: str, seed: int) -> dict[str, Any]:
        """Return how a grammar ended; after an ending with "BAD died" there is no other."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"text": text, "seed": seed}) + "\n")
            self._process.stdin.flush()
        try:
            began = self._lines.get(timeout=_START_SECONDS)
            ended = began and self._lines.get(timeout=HANG_SECONDS)
        except Empty:
            return {"ending": f"BAD died: no end after {HANG_SECONDS:.0f} s"}
        if ended is None:
            return {"ending": f"BAD died with status {self._process.wait()}"}
        result: dict[str, Any] = json.loads(ended)
        return result

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)


def fuzz(
    schemas: Sequence[Any], kinds: Sequence[str], count: int, seed: int, target: str | None = None
) -> Tally:
    """Make and follow so many grammars, as many of each kind."""
    draw = random.Random(seed)
    tally = Tally()
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(GrammarProcess(target))
        for number in range(count):
            kind = kinds[number % len(kinds)]
            text = grammar_text(draw, kind, schemas)
            result = process.follow(text, draw.getrandbits(32))
            _count(tally, kind, text, result)
            if result["ending"].startswith("BAD died"):
                process = stack.enter_context(GrammarProcess(target))
    return tally


def _count(tally: Tally, kind: str, text: str, result: dict[str, Any]) -> None:
    ending: str = result["ending"]
    tally.endings[f"{kind}: {ending}" if not ending.startswith("BAD") else f"{kind}: BAD"] += 1
    if ending.startswith("BAD"):
        tally.bad.append((ending, text[:_SHOWN]))
    for operation, seconds in result.get("seconds", {}).items():
        tally.slow[operation] += seconds > SLOW_SECONDS
        if seconds > tally.slowest.get(operation, Slowest(0.0, "")).seconds:
            tally.slowest[operation] = Slowest(round(seconds, 4), text[:_SHOWN])
    tally.mib = max(tally.mib, result.get("mib", 0))
