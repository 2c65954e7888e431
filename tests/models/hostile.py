"""Checkpoints that are wrong on purpose, and a watch over what refusing them costs."""

import json
import struct
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest

from blockdraft_models.errors import CheckpointError

# Parsing the headers of a tiny checkpoint takes a tenth of this.
MOST_BYTES = 4 << 20


@contextmanager
def refused(match: str, names: Path | str) -> Iterator[None]:
    """Expect a `CheckpointError` that names a file, without memory spent or a device touched."""
    arrays = len(jax.live_arrays())
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=match) as caught:
            yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(names) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert peak < MOST_BYTES
    assert len(jax.live_arrays()) <= arrays


def write_raw(path: Path, header: Mapping[str, Any] | bytes, data: bytes = b"") -> None:
    """Write a safetensors file with this header, whatever the data is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    """One tensor of a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
