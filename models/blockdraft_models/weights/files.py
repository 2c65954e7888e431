"""Files of an untrusted checkpoint directory: only those that lie there, and of sane sizes."""

import json
import os
from pathlib import Path
from typing import Any

from blockdraft_models.errors import CheckpointError

# The largest published JSON beside a model, an index of a thousand shards, has a few megabytes.
_MOST_JSON_BYTES = 64 << 20
_MOST_LINKS = 16
# GGUF allows 64; names of published safetensors are shorter than 100.
_LONGEST_NAME = 200
_POINTER = b"version https://git-lfs"


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """Read a JSON object; an empty one if the file is absent and need not be there."""
    if not os.path.lexists(path):
        if not required:
            return {}
        raise CheckpointError(f"{path.parent} has no {path.name}")
    check_regular(path)
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            raise CheckpointError(f"{path} is larger than any such file should be")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    except RecursionError as error:
        raise CheckpointError(f"cannot read {path}: it is nested too deep") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def check_name(path: Path, name: str) -> None:
    """Check that the name of a tensor can be shown: errors name those that are missing or wrong."""
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise CheckpointError(f"{path}: {name[:_LONGEST_NAME]!r} is no name of a tensor")


def check_regular(path: Path) -> None:
    """Check that a path of a checkpoint is a regular file of its directory.

    A link may lead within the directory, or into the `blobs` folder beside the `snapshots` in
    which the hub's cache keeps every file; links beyond that are the cache's own.
    """
    directory = Path(os.path.realpath(path.parent))
    hop = directory / path.name
    for _ in range(_MOST_LINKS):
        if not hop.is_symlink():
            break
        aim = hop.parent / hop.readlink()
        hop = Path(os.path.realpath(aim.parent)) / aim.name
        if hop.parent == _blobs(directory):
            break
        if not hop.is_relative_to(directory):
            raise CheckpointError(f"{path} is a link that leads out of its directory, to {aim}")
    # Of a pipe or a device even the first byte may never come.
    if not path.is_file():
        raise CheckpointError(f"{path} is not a regular file")
    check_fetched(path)


def check_fetched(path: Path) -> None:
    """Check that a file is no pointer of Git LFS."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(f"{path} is a pointer of Git LFS: fetch it with `git lfs pull`")


def _blobs(directory: Path) -> Path | None:
    repository = directory.parent.parent
    return repository / "blobs" if directory.parent.name == "snapshots" else None
