"""Where what was fetched or computed once is kept."""

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """Return `$BLOCKDRAFT_CACHE`, or `~/.cache/blockdraft`."""
    configured = os.environ.get("BLOCKDRAFT_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "blockdraft"
