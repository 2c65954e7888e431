"""The identity of weights: a hash of every value, whatever format it is stored in.

A value is hashed as the float32 it stands for, so the same weights have one fingerprint as
safetensors of any float type and as GGUF. It is SHA-256, for which processors have instructions:
BLAKE2 took almost three times as long.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.processor import usable_cores
from blockdraft_models.weights.tensor_names import TensorName, tensor_names

_HEX_DIGITS = 16
# Values that a thread holds at a time, as float32. Bounds the memory.
_BLOCK_BYTES = 1 << 20
# More of them wait for memory and files rather than for hashes.
_MOST_THREADS = 16

RowReader = Callable[[TensorName, slice], Any]
"""Reads rows of a tensor, those of q and k by whole heads."""


def decoder_fingerprint(
    config: DecoderConfig, in_stored_order: Iterable[TensorName], read: RowReader
) -> str:
    """Identify a decoder.

    Args:
        config: What its weights compute.
        in_stored_order: All its tensors, in the order in which they are best read.
        read: Reads rows of a tensor; called by several threads at once.

    Returns:
        16 hex digits.
    """
    # Both release Python's lock: reading and converting by NumPy, and hashing.
    with ThreadPoolExecutor(min(usable_cores(), _MOST_THREADS)) as pool:
        running = {
            name: pool.submit(values_digest, _blocks(name, read)) for name in in_stored_order
        }
        digests = [running[name].result() for name in tensor_names(config)]
    return combined(config.canonical_json(), digests)


def values_digest(blocks: Iterable[Any]) -> bytes:
    """Hash the values of one tensor, given whole or in consecutive blocks of rows."""
    digest = hashlib.sha256()
    for block in blocks:
        # Values of a float64 file may be too large for a float32; they are infinite then.
        with np.errstate(over="ignore"):
            digest.update(np.asarray(block, "<f4", order="C").data)
    return digest.digest()


def combined(description: str, digests: Iterable[bytes]) -> str:
    """Return the fingerprint of tensors in a fixed order.

    Args:
        description: Says what the tensors are, shapes included.
        digests: By `values_digest`.

    Returns:
        16 hex digits.
    """
    digest = hashlib.sha256(description.encode())
    for part in digests:
        digest.update(part)
    return digest.hexdigest()[:_HEX_DIGITS]


def _blocks(name: TensorName, read: RowReader) -> Iterator[Any]:
    rows, row_bytes = name.shape[0], 4 * math.prod(name.shape[1:])
    unit = rows // name.permuted_heads if name.permuted_heads else 1
    step = max(unit, _BLOCK_BYTES // row_bytes // unit * unit)
    for start in range(0, rows, step):
        yield read(name, slice(start, min(start + step, rows)))
