"""Fingerprints kept on disk, because taking one reads the whole checkpoint.

One small file for each, named by a hash of everything that it was taken of: the files with their
sizes and times, and the configuration. A changed weight file has another name here.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from blockdraft_models.weights.cache_dir import write_at_once

logger = logging.getLogger(__name__)

# Goes up when fingerprints are taken otherwise, so that the earlier ones are forgotten.
_DEFINITION = 1
# Less is read in an instant, and is not worth a file.
_LEAST_BYTES = 16 << 20
_FINGERPRINT = re.compile(r"[0-9a-f]{16}\n")


def remembered_fingerprint(
    files: Sequence[Path], description: str, take: Callable[[], str], folder: Path
) -> str:
    """Return the fingerprint of a checkpoint, taken now or earlier.

    Args:
        files: Its weights.
        description: What the fingerprint depends on besides.
        take: Reads the weights.
        folder: Where fingerprints are kept; created if needed. If it cannot be used, or what it
            holds is damaged, the fingerprint is taken anew.
    """
    size = sum(file.stat().st_size for file in files)
    if size < _LEAST_BYTES:
        return take()
    key = _key(files, description)
    known = _recall(folder / key)
    if known is not None:
        return known
    logger.info("reading %.1f GB of weights to identify them, this once", size / 1e9)
    fingerprint = take()
    # What changed while it was read is not what the key says.
    if _key(files, description) == key:
        _keep(folder / key, fingerprint)
    return fingerprint


def _key(files: Sequence[Path], description: str) -> str:
    seen = [_seen(file) for file in files]
    told = json.dumps([_DEFINITION, description, seen])
    return hashlib.sha256(told.encode()).hexdigest()


def _seen(file: Path) -> tuple[str, int, int, int]:
    status = file.stat()
    # The last one, unlike the time of writing, cannot be set back: archives and `cp -p` do that.
    return str(file.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _recall(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return text.strip() if _FINGERPRINT.fullmatch(text) else None


def _keep(path: Path, fingerprint: str) -> None:
    try:
        write_at_once(path, f"{fingerprint}\n")
    except OSError as error:
        logger.warning("cannot keep a fingerprint in %s: %s", path.parent, error)
