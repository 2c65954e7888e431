"""What is measured, on disk as it comes, so that an interrupted measurement goes on.

One JSON object a line: the settings it was measured under, its key and the record. Keys and records
are frozen dataclasses.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from blockdraft_bench.common.errors import BenchError

Key = TypeVar("Key")
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class _Settings:
    """The part of a line that says whether the rest matters."""

    settings: str


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
        if path is not None and path.exists():
            self._read(path)

    def __iter__(self) -> Iterator[Record]:
        """Return the records, in the order they were added."""
        return iter(self._records.values())

    def get(self, key: Key) -> Record | None:
        """Return a record, or None if it is still to be measured."""
        return self._records.get(key)

    def get_or_measure(self, key: Key, measure: Callable[[], Record]) -> Record:
        """Return a record; measure and keep it first if it is not there."""
        if key not in self._records:
            self.add(key, measure())
        return self._records[key]

    def add(self, key: Key, record: Record) -> None:
        """Keep a record; a second one for the same key is dropped."""
        if key in self._records:
            return
        self._records[key] = record
        if self._path is None:
            return
        line = msgspec.json.encode({"settings": self._settings, "key": key, "record": record})
        with self._path.open("ab") as file:
            file.write(line + b"\n")

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                if msgspec.json.decode(line, type=_Settings).settings != self._settings:
                    continue
                key, record = self._decode(line)
            except ValueError as error:
                raise BenchError(f"{path}, line {number} is no result: {error}") from error
            self._records.setdefault(key, record)
        if whole < len(content):
            # The last line was being written when the run was interrupted.
            with path.open("r+b") as file:
                file.truncate(whole)

    def _decode(self, line: bytes) -> tuple[Key, Record]:
        key, record = self._types
        parts = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        try:
            return (
                msgspec.json.decode(parts["key"], type=key),
                msgspec.json.decode(parts["record"], type=record),
            )
        except KeyError as error:
            raise ValueError(f"{error} is missing") from error
