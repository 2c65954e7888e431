"""The course of every measurement: from its settings to the files it writes and what it prints.

    read what the settings name -> load and compile -> measure, with what an interrupted run left
    taken as it is -> JSON, page and figure into one folder -> print one of the first two

A measurement is a function from its settings and a `Run` to a `Result`; the rest is here.
"""

import datetime
import functools
import os
import random
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blockdraft_bench.provenance import (
    commit,
    digest,
    environment,
    hardware,
    packages,
    source_digest,
    versions,
)
from blockdraft_bench.result import Result, to_json
from blockdraft_bench.settings import RESULTS, OutputSettings
from blockdraft_bench.store import ResultStore
from blockdraft_models.processor import this_processor

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SAMPLES_FILE = "samples.jsonl"
# The first calls meet cold caches, unmapped memory and connections that open their windows.
UNCOUNTED_ROUNDS = 3
_SECRETS = ("--api-key=",)

Point = TypeVar("Point")
Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the work, with a progress bar of its own."""

    progress: "Progress"
    task: "TaskID"

    def advance(self, description: str | None = None) -> None:
        """Show one more finished piece, and the description of the next."""
        self.progress.update(self.task, advance=1, description=description)

    def reach(self, count: int, total: int) -> None:
        """Show that `count` of `total` pieces are finished."""
        self.progress.update(self.task, completed=count, total=total)


class Run:
    """One run of a measurement; a context manager around it.

    Attributes:
        commit: Of the code when the run began: it may be committed or changed while it runs.
    """

    def __init__(self, benchmark: str, flags: Sequence[str], output: OutputSettings) -> None:
        """Prepare; nothing is written or shown yet.

        Args:
            benchmark: Name of the measurement, and of its files.
            flags: The flags that give its settings, wherever these came from.
            output: Where its files go, and what it prints.
        """
        self.benchmark = benchmark
        shown = [flag for flag in flags if not flag.startswith(_SECRETS)]
        self._command = ["blockdraft", "bench", benchmark, *shown]
        self._output = output
        code = packages()
        self.commit = commit(code)
        self._source = source_digest(code)
        self._identity: str | None = None
        self._progress: Progress | None = None

    def __enter__(self) -> "Run":
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Take progress bars away; after an interrupt, say how to go on."""
        if self._progress is not None:
            self._progress.stop()
        if kind is KeyboardInterrupt and self._identity is not None:
            text = f"interrupted; the same with --output {self.folder} goes on from here"
            print(text, file=sys.stderr)

    def phase(self, description: str, total: int | None = None) -> Phase:
        """Show a progress bar on stderr for the next part; no total if it is not known yet."""
        # Imported here: `--help` must not wait for it.
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

        if self._progress is None:
            columns = *Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn()
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._progress.start()
        return Phase(self._progress, self._progress.add_task(description, total=total))

    def note(self, text: str) -> None:
        """Print a result on stderr, above the progress bar of a phase."""
        assert self._progress is not None
        self._progress.console.print(text, highlight=False)

    def identify(self, *settings: object) -> None:
        """Set the settings that identify stored results beside their keys, before opening a store.

        The same measurement of the same day finds its folder again, and in it only results that
        were measured with the same settings by the same code, packages and processor.
        """
        self._identity = digest(self._source, versions(), this_processor(), *settings)

    @functools.cached_property
    def folder(self) -> Path:
        """The folder of the files, made if need be; without a store, its name is of all flags."""
        identity = self._identity or digest(self._source, versions(), self._command)
        name = f"{self.benchmark}-{datetime.date.today()}-{identity}"
        folder = self._output.output or RESULTS / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def store(self, record: Any, name: str = SAMPLES_FILE) -> ResultStore[Any]:
        """Open the results so far, in a file of the run's folder; see `ResultStore`."""
        assert self._identity is not None
        return ResultStore(record, self._identity, self.folder / name)

    def publish(self, result: Result) -> None:
        """Write all files and print the page, or the JSON instead."""
        machine, command = hardware(), shlex.join(self._command)
        text = to_json(
            {
                "benchmark": self.benchmark,
                "command": command,
                "environment": environment(os.environ),
                "commit": self.commit,
                "versions": versions(),
                "hardware": machine,
                **result.facts,
                "results": result.results,
            }
        )
        about = f"{machine.device}, {machine.cores} cores; commit {self.commit or 'unknown'}"
        page = f"{result.page}\nMeasured on {about}: `{command}`\n"
        stem = self.folder / self.benchmark
        stem.with_suffix(".json").write_text(text, encoding="utf-8")
        stem.with_suffix(".md").write_text(page, encoding="utf-8")
        if result.figure is not None:
            result.figure.savefig(stem.with_suffix(".png"), dpi=150)
        print(f"written to {self.folder}", file=sys.stderr)
        sys.stdout.write(text if self._output.json else page)


def sample_in_rounds(
    measures: Mapping[Point, Callable[[], Sample]],
    runs: int,
    on_sample: Callable[[], None],
    uncounted: int = UNCOUNTED_ROUNDS,
) -> dict[Point, list[Sample]]:
    """Return a sample of every point for each round that counts, each round in another order.

    So a noisy moment of the machine meets all points. `uncounted` rounds come before.
    """
    samples: dict[Point, list[Any]] = {point: [] for point in measures}
    rng = random.Random(0)
    for turn in range(uncounted + runs):
        # The call before leaves its traces in the processor's caches.
        for point in rng.sample(list(measures), len(measures)):
            sample = measures[point]()
            if turn >= uncounted:
                samples[point].append(sample)
            on_sample()
    return samples
