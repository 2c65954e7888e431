"""Records of learning on disk: a dataclass is a JSON file, which is replaced as a whole."""

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

SCRATCH = ".new-"
"""Beginning of the names of files and folders that are being written."""

_LONGEST_BYTES = 1 << 16

Record = TypeVar("Record")


def write_record(path: Path, record: Any) -> None:
    """Replace a file by a record; after an `OSError`, or a power cut, the earlier one may stay."""
    scratch = path.with_name(f"{SCRATCH}{path.name}")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record), indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    to_disk(path.parent)


def read_record(path: Path, kind: type[Record]) -> Record:
    """Return the record in a file: `OSError` if there is no file, `ValueError` if it is damaged.

    Fields that only a newer version knows are skipped; missing ones get their defaults.
    """
    # Anything but a file, such as a pipe, might never end.
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file")
    with path.open("rb") as file:
        text = file.read(_LONGEST_BYTES)
    try:
        entry = json.loads(text)
        names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
        return kind(**{name: value for name, value in entry.items() if name in names})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def to_disk(path: Path) -> None:
    """Make sure that a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
