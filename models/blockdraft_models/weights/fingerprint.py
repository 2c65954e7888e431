"""The identity of weights: a hash of every value, whatever format it is stored in.

A value is hashed as the float32 it stands for, so the same weights have one fingerprint as
safetensors of any float type and as GGUF. It is SHA-256, for which processors have instructions:
BLAKE2 took almost three times as long.

Fingerprints are kept on disk, because taking one reads the whole checkpoint. Each is a small file,
whose name is a hash of the configuration and of the weight files' paths, sizes and times: a changed
weight file leads to another name.
"""

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from blockdraft_models.cache import write_at_once
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.families.tensors import TensorName
from blockdraft_models.processor import usable_cores

logger = logging.getLogger(__name__)

_HEX_DIGITS = 16
# Raised when the definition of fingerprints changes, so that the earlier ones are forgotten.
_DEFINITION = 2
# A smaller checkpoint is read in an instant, and is not worth a file.
_LEAST_BYTES = 16 << 20
_FINGERPRINT = re.compile(r"[0-9a-f]{16}\n")
# Bytes of float32 values that a thread holds at a time.
_BLOCK_BYTES = 1 << 20
# More threads would wait for memory and files rather than for hashes.
_MOST_THREADS = 16

RowReader = Callable[[TensorName, slice], Any]
"""Reads rows of a tensor, those of q and k by whole heads."""


def decoder_fingerprint(
    description: str,
    names: Iterable[TensorName],
    in_stored_order: Iterable[TensorName],
    read: RowReader,
) -> str:
    """Identify a decoder by 16 hex digits; several threads read its tensors as they are stored."""
    # Hashing, and reading and converting by NumPy, release Python's lock.
    with ThreadPoolExecutor(min(usable_cores(), _MOST_THREADS)) as pool:
        running = {
            name: pool.submit(values_digest, _blocks(name, read)) for name in in_stored_order
        }
        digests = [running[name].result() for name in names]
    return combined(description, digests)


def values_digest(blocks: Iterable[Any]) -> bytes:
    """Hash the values of one tensor, given whole or in consecutive blocks of rows."""
    digest = hashlib.sha256()
    for block in blocks:
        # Values of a float64 file may be too large for a float32; they are infinite then.
        with np.errstate(over="ignore"):
            digest.update(np.asarray(block, "<f4", order="C").data)
    return digest.digest()


def combined(description: str, digests: Iterable[bytes]) -> str:
    """Return 16 hex digits of `values_digest`s in a fixed order.

    The description says what the tensors are, shapes included.
    """
    digest = hashlib.sha256(description.encode())
    for part in digests:
        digest.update(part)
    return digest.hexdigest()[:_HEX_DIGITS]


def shape_fingerprint(config: DecoderConfig) -> str:
    """Identify by 16 hex digits what a decoder computes with whatever weights.

    Copies share it however they are named, stored or quantized, and so do models tuned from one.
    """
    return combined(config.canonical_json(), ())


def _blocks(name: TensorName, read: RowReader) -> Iterator[Any]:
    if not name.shape:
        yield read(name, slice(None))
        return
    rows, row_bytes = name.shape[0], 4 * math.prod(name.shape[1:])
    unit = rows // name.permuted_heads if name.permuted_heads else 1
    step = max(unit, _BLOCK_BYTES // row_bytes // unit * unit)
    for start in range(0, rows, step):
        yield read(name, slice(start, min(start + step, rows)))


def remembered_fingerprint(
    files: Sequence[Path], description: str, take: Callable[[], str], folder: Path
) -> str:
    """Return the fingerprint of weights and their `description`, taken now or earlier.

    If the folder where fingerprints are kept cannot be used, or its file is damaged, the
    fingerprint is taken anew.
    """
    size = sum(file.stat().st_size for file in files)
    if size < _LEAST_BYTES:
        return take()
    key = _key(files, description)
    fingerprint = _recall(folder / key)
    if fingerprint is not None:
        return fingerprint
    logger.info("reading %.1f GB of weights to identify them, this once", size / 1e9)
    fingerprint = take()
    # The key does not describe files that changed while they were read.
    if _key(files, description) == key:
        _keep(folder / key, fingerprint)
    return fingerprint


def _key(files: Sequence[Path], description: str) -> str:
    entries = []
    for file in files:
        status = file.stat()
        # Archives and `cp -p` set back the time of writing; the last time cannot be set back.
        times = status.st_mtime_ns, status.st_ctime_ns
        entries.append((str(file.resolve()), status.st_size, *times))
    text = json.dumps([_DEFINITION, description, entries])
    return hashlib.sha256(text.encode()).hexdigest()


def _recall(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return text.strip() if _FINGERPRINT.fullmatch(text) else None


def _keep(path: Path, fingerprint: str) -> None:
    try:
        write_at_once(path, f"{fingerprint}\n".encode())
    except OSError as error:
        logger.warning("cannot keep a fingerprint in %s: %s", path.parent, error)
