"""Measured items on disk, one JSON object a line, so that an interrupted measurement goes on."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from blockdraft_bench.common.errors import BenchError

Key = TypeVar("Key")
Item = TypeVar("Item")


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that stand for a JSON value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class LineStore(ABC, Generic[Key, Item]):
    """The items so far under one choice of settings; each key has at most one.

    Subclasses say what an item looks like in JSON.
    """

    def __init__(self, settings: str, path: Path | None = None) -> None:
        """Read what is there.

        Args:
            settings: Digest of all that decides an item beside its key. Lines with another one
                are left alone.
            path: The file, made when the first item comes; None keeps items in memory only.

        Raises:
            BenchError: If the file holds something else.
        """
        self._settings = settings
        self._path = path
        self._items: dict[Key, Item] = {}
        if path is not None and path.exists():
            self._read(path)

    def __iter__(self) -> Iterator[Item]:
        """Return the items, in the order they were added."""
        return iter(self._items.values())

    def get(self, key: Key) -> Item | None:
        """Return an item, or None if it is still to be measured."""
        return self._items.get(key)

    def add(self, key: Key, item: Item) -> None:
        """Keep an item; a second one for the same key is dropped."""
        if key in self._items:
            return
        self._items[key] = item
        if self._path is None:
            return
        fields = {"settings": self._settings, **self._to_fields(key, item)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")

    @abstractmethod
    def _to_fields(self, key: Key, item: Item) -> dict[str, Any]:
        """Return key and item as a JSON object, without the field "settings"."""

    @abstractmethod
    def _from_fields(self, fields: Mapping[str, Any]) -> tuple[Key, Item]:
        """Return what `_to_fields` was given.

        Raises:
            ValueError: If it is something else; a KeyError or TypeError says the same.
        """

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                fields = json.loads(line)
                if fields["settings"] != self._settings:
                    continue
                key, item = self._from_fields(fields)
            except (ValueError, TypeError, KeyError) as error:
                raise BenchError(f"{path}, line {number} is no answer: {error}") from error
            self._items.setdefault(key, item)
        if whole < len(content):
            # The last line was being written when the run was interrupted.
            with path.open("r+b") as file:
                file.truncate(whole)
