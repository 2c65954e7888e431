"""Where what was fetched or computed once is kept."""

import os
import tempfile
from pathlib import Path


def default_cache_dir() -> Path:
    """Return `$BLOCKDRAFT_CACHE`, or `~/.cache/blockdraft`."""
    configured = os.environ.get("BLOCKDRAFT_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "blockdraft"


def write_at_once(path: Path, text: str) -> None:
    """Write a small file whole or not at all: other processes may be reading it.

    Args:
        path: The file; its folder is created if needed.
        text: What it shall hold.

    Raises:
        OSError: If it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as scratch:
        written = Path(scratch) / path.name
        written.write_text(text, encoding="utf-8")
        os.replace(written, path)
