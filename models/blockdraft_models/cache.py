"""What is fetched or measured once and kept on disk for the processes to come."""

import fcntl
import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Measured = TypeVar("Measured", float, str)


def default_cache_dir() -> Path:
    """Return `$BLOCKDRAFT_CACHE`, or `~/.cache/blockdraft`."""
    configured = os.environ.get("BLOCKDRAFT_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "blockdraft"


def write_at_once(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, since other processes may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as scratch:
        written = Path(scratch) / path.name
        written.write_bytes(content)
        os.replace(written, path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only process that makes a file; the lock is a hidden file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The kernel drops the lock when its holder dies, so a crash blocks no other process.
    with path.with_name(f".{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_positive(value: object) -> bool:
    """Return whether a value is a positive finite float."""
    return isinstance(value, float) and math.isfinite(value) and value > 0


def kept_measurement(
    path: Path,
    key: str,
    measure: Callable[[], Measured],
    valid: Callable[[object], bool] = is_positive,
) -> Measured:
    """Return what was measured under a key, which tells all that it depends on, or measure it.

    Several processes may call this at once: one measures, the others wait for it and then agree.
    Where the JSON file cannot be written each process measures for itself; one with a value that
    is not `valid` is replaced. Machines may share it, each with keys of its own.
    """
    with ExitStack() as held:
        # Where nothing can be locked nothing can be written either, of which `_write` tells.
        with suppress(OSError):
            held.enter_context(locked(path))
        kept = _read(path, valid)
        if key not in kept:
            kept[key] = measure()
            _write(path, kept)
        found: Measured = kept[key]
        return found


def _read(path: Path, valid: Callable[[object], bool]) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(kept, dict) or not all(map(valid, kept.values())):
            raise ValueError("not measurements by name")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("measuring anew, because %s cannot be read: %s", path, error)
        return {}
    return kept


def _write(path: Path, kept: Mapping[str, Any]) -> None:
    try:
        write_at_once(path, f"{json.dumps(kept, indent=2)}\n".encode())
    except OSError as error:
        logger.warning("every start measures anew, because %s cannot be kept: %s", path, error)
