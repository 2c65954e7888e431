"""What is measured, on disk as it comes, so that an interrupted measurement goes on.

One JSON object a line: the settings it was measured under, when that ended, its key and the record.
Keys and records are frozen dataclasses.
"""

import datetime
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from blockdraft_bench.common.errors import BenchError

Key = TypeVar("Key")
Record = TypeVar("Record")


class ResultStore(Generic[Key, Record]):
    """The records so far under one choice of settings; each key has at most one."""

    def __init__(
        self, key: type[Key], record: type[Record], settings: str, path: Path | None = None
    ) -> None:
        """Read what is there.

        Args:
            key: What tells records apart.
            record: What is kept.
            settings: Digest of all that decides a record beside its key. Lines with another one
                are left alone.
            path: The file, made when the first record comes; None keeps them in memory only.

        Raises:
            BenchError: If the file holds something else.
        """
        self._settings = settings
        self._path = path
        self._types = key, record
        self._records: dict[Key, Record] = {}
        # Of the records that were there.
        self._times: dict[Key, datetime.datetime] = {}
        if path is not None and path.exists():
            self._read(path)

    def __iter__(self) -> Iterator[Record]:
        """Return the records, in the order they were added."""
        return iter(self._records.values())

    def get(self, key: Key) -> Record | None:
        """Return a record, or None if it is still to be measured."""
        return self._records.get(key)

    def announce(self, keys: Sequence[Key]) -> None:
        """Say on stderr how many of a run's keys are not measured anew, and from when they are."""
        times = sorted(self._times[key] for key in keys if key in self._times)
        if times:
            first, last = (f"{time.astimezone():%Y-%m-%d %H:%M}" for time in (times[0], times[-1]))
            print(
                f"taking over {len(times)} of {len(keys)} results measured {first} to "
                f"{last.removeprefix(first[:11])} (delete {self._path} to measure anew)",
                file=sys.stderr,
            )

    def add(self, key: Key, record: Record) -> None:
        """Keep a record; a second one for the same key is dropped."""
        if key in self._records:
            return
        self._records[key] = record
        if self._path is None:
            return
        now = datetime.datetime.now().astimezone()
        line = msgspec.json.encode(
            {"settings": self._settings, "time": now, "key": key, "record": record}
        )
        with self._path.open("ab") as file:
            file.write(line + b"\n")

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                parts = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
                if msgspec.json.decode(parts["settings"], type=str) != self._settings:
                    continue
                key = msgspec.json.decode(parts["key"], type=self._types[0])
                record = msgspec.json.decode(parts["record"], type=self._types[1])
                time = msgspec.json.decode(parts["time"], type=datetime.datetime)
            except KeyError as error:
                raise BenchError(f"{path}, line {number} is no result: no {error}") from error
            except ValueError as error:
                raise BenchError(f"{path}, line {number} is no result: {error}") from error
            self._records.setdefault(key, record)
            self._times.setdefault(key, time)
        if whole < len(content):
            # The last line was being written when the run was interrupted.
            with path.open("r+b") as file:
                file.truncate(whole)
