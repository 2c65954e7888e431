"""The course of every measurement: from its flags to the files it writes and what it prints.

    check settings -> read what they name -> load and compile -> measure, with what an interrupted
    run left taken as it is -> report, page, figures into one folder -> print one of the first two

A measurement is a function from its settings and a `Run` to an `Outcome`; the rest is here.
"""

import datetime
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockdraft_bench.common.provenance import commit, packages, source_digest, versions
from blockdraft_bench.common.record import digest, to_json
from blockdraft_bench.common.settings import RESULTS, OutputSettings
from blockdraft_bench.common.store import Key, Record, ResultStore
from blockdraft_models.processor import this_processor

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.progress import Progress, TaskID

SAMPLES_FILE = "samples.jsonl"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a measurement found.

    Attributes:
        report: A dataclass, for programs.
        page: Markdown, for people.
        figures: By the end of their file names; "" is the main one.
    """

    report: object
    page: str
    figures: "Mapping[str, Figure]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the work, with a progress bar of its own."""

    progress: "Progress"
    task: "TaskID"

    def advance(self, description: str | None = None) -> None:
        """Show that one more piece is done, and what it is at now."""
        self.progress.update(self.task, advance=1, description=description)

    def rename(self, description: str) -> None:
        """Show what it is at now."""
        self.progress.update(self.task, description=description)

    def reach(self, done: int, total: int) -> None:
        """Show how many of how many pieces are done."""
        self.progress.update(self.task, completed=done, total=total)


class Run:
    """One run of a measurement; a context manager around it.

    Attributes:
        commit: Of the code when the run began: it may be committed or changed while it runs.
    """

    def __init__(self, benchmark: str, output: Path | None) -> None:
        """Prepare; nothing is written or shown yet.

        Args:
            benchmark: Name of the measurement, and of its files.
            output: Folder for the files; None for a new one in `RESULTS`.
        """
        self.benchmark = benchmark
        code = packages()
        self.commit = commit(code)
        self._source = source_digest(code)
        self._output = output
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

    def identify(self, *settings: object) -> None:
        """Say all settings that decide the results; must be called once, before a store is opened.

        The same measurement of the same day finds its folder again, and in it only results that
        were measured with the same settings by the same code, packages and processor.
        """
        self._identity = digest(self._source, versions(), this_processor(), *settings)

    @property
    def folder(self) -> Path:
        """The folder of the files, made if need be."""
        assert self._identity is not None
        name = f"{self.benchmark}-{datetime.date.today()}-{self._identity}"
        folder = self._output or RESULTS / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def store(
        self, key: type[Key], record: type[Record], name: str = SAMPLES_FILE
    ) -> ResultStore[Key, Record]:
        """Open the results so far, in a file of the run's folder; see `ResultStore`."""
        folder = self.folder
        assert self._identity is not None
        return ResultStore(key, record, self._identity, folder / name)

    def publish(self, outcome: Outcome, *, as_json: bool) -> None:
        """Write all files and print the page, or the JSON instead."""
        text, stem = to_json(outcome.report), self.folder / self.benchmark
        stem.with_suffix(".json").write_text(text, encoding="utf-8")
        stem.with_suffix(".md").write_text(outcome.page, encoding="utf-8")
        for ending, figure in outcome.figures.items():
            from blockdraft_bench.common.figure import save

            save(figure, stem.with_name(f"{stem.name}{ending}.png"))
        print(f"written to {self.folder}", file=sys.stderr)
        sys.stdout.write(text if as_json else outcome.page)


def run_measurement(
    benchmark: str, measure: Callable[[Any, Run], Outcome], settings: object, result: OutputSettings
) -> int:
    """Measure what `settings` say, write, print; return the exit code."""
    with Run(benchmark, result.output) as run:
        outcome = measure(settings, run)
    run.publish(outcome, as_json=result.json)
    return 0
