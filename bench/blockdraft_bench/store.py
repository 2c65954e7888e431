"""Results on disk, written as they come, so that an interrupted measurement goes on.

One JSON object a line: the settings of a result, the time of its end, its key and the record.
A key is a tuple of texts and numbers, a record a frozen dataclass.
"""

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from blockdraft_bench.errors import BenchError

Key = tuple[str | int | float, ...]
Record = TypeVar("Record")


class ResultStore(Generic[Record]):
    """The records so far under one choice of settings; each key has at most one."""

    def __init__(self, record: Any, settings: str, path: Path) -> None:
        """Read the records that are there.

        Args:
            record: Type of a record, as msgspec takes it.
            settings: Digest of all that decides a record beside its key. Lines with another one
                are left alone.
            path: The file, made when the first record comes.

        Raises:
            BenchError: If the file holds something else.
        """
        self._settings = settings
        self._path = path
        self._type = record
        self._records: dict[Key, Record] = {}
        # Of the records that were there.
        self._times: dict[Key, datetime.datetime] = {}
        if path.exists():
            self._read(path)

    def get(self, key: Key) -> Record | None:
        """Return a record, or None if it is still to be measured."""
        return self._records.get(key)

    def announce(self, keys: Sequence[Key]) -> None:
        """Say on stderr how many of a run's keys have results, and when those were measured."""
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
        now = datetime.datetime.now().astimezone()
        line = {"settings": self._settings, "time": now, "key": key, "record": record}
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                parts = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
                if msgspec.json.decode(parts["settings"]) != self._settings:
                    continue
                key = msgspec.json.decode(parts["key"], type=Key)
                record = msgspec.json.decode(parts["record"], type=self._type)
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
