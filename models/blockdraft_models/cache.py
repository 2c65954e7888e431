"""Files that are fetched or made once and kept on disk for later processes."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    """Hold a file's lock, a hidden file beside it, so that only one process makes the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The kernel drops the lock when its holder dies, so a crash blocks no other process.
    with path.with_name(f".{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
