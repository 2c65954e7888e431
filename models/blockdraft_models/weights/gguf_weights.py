"""Tensors of a GGUF file, dequantized one at a time."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from jaxtyping import Float, UInt8

from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.gguf_header import GGUFHeader

_ALL = slice(None)
# Elements dequantized at a time; a quarter or four times as many take about as long.
_SLICE_ELEMENTS = 2**17
# `dequantize` wants unquantized data in its own dtype.
_PLAIN = {"F32": "<f4", "F16": "<f2"}


class GGUFWeights:
    """The tensors of a GGUF file as float32 arrays, dequantized one at a time."""

    def __init__(self, header: GGUFHeader) -> None:
        """Map the file of `header`."""
        self._header = header
        self._stored = {name: _storage(header, name) for name in header.tensors}
        _check_extents(header, {name: stored.bytes for name, stored in self._stored.items()})
        # A plain view: slicing np.memmap objects costs as much as dequantizing.
        self._data = np.memmap(header.path, dtype=np.uint8, mode="r").view(np.ndarray)

    def files(self) -> list[Path]:
        """Return the file, alone."""
        return [self._header.path]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor by name, in the order in which the file holds them."""
        tensors = self._header.tensors
        in_order = sorted(tensors, key=lambda name: tensors[name].offset)
        return {name: tensors[name].shape for name in in_order}

    def format(self, name: str) -> str:
        """Return ggml's name of a tensor's format, such as Q4_1."""
        return self._stored[name].kind.name

    def read_bytes(self, name: str) -> UInt8[np.ndarray, "..."]:
        """Return a tensor as it is stored, the last axis being the bytes of a row; no copy."""
        tensor, stored = self._header.tensors[name], self._stored[name]
        raw = self._data[tensor.offset : tensor.offset + stored.bytes]
        return raw.reshape(*tensor.shape[:-1], stored.row_bytes)

    def read(self, name: str, rows: slice = _ALL) -> Float[np.ndarray, "..."]:
        """Dequantize rows of a tensor, with step one, into a fresh float32 array."""
        tensor, stored = self._header.tensors[name], self._stored[name]
        raw = self.read_bytes(name).view(_PLAIN.get(stored.kind.name, "u1"))[rows]
        values = np.empty((len(raw), *tensor.shape[1:]), np.float32)
        # In slices that fit into a core's cache, each as one row: `dequantize` takes 16 at a time.
        rows_in, rows_out = (part.reshape(-1, part.shape[-1]) for part in (raw, values))
        height = max(1, _SLICE_ELEMENTS // values.shape[-1])
        for start in range(0, len(rows_out), height):
            part = slice(start, start + height)
            dequantized = dequantize(rows_in[part].reshape(1, -1), stored.kind)
            rows_out[part] = dequantized.reshape(-1, values.shape[-1])
        return values


class _Storage(NamedTuple):
    """Format and size of a stored tensor."""

    kind: GGMLQuantizationType
    row_bytes: int
    bytes: int


def _storage(header: GGUFHeader, name: str) -> _Storage:
    tensor = header.tensors[name]
    try:
        kind = GGMLQuantizationType(tensor.ggml_type)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"{header.path}: {name} has unknown ggml type {tensor.ggml_type}"
        ) from error
    try:
        dequantize(np.zeros((1, block_bytes), np.uint8).view(_PLAIN.get(kind.name, "u1")), kind)
    except NotImplementedError as error:
        raise CheckpointError(f"{header.path}: {name}: {kind.name} is not supported") from error
    columns = tensor.shape[-1]
    if columns % block:
        raise CheckpointError(
            f"{header.path}: {columns} columns of {name} are no blocks of {block}"
        )
    row_bytes = columns // block * block_bytes
    return _Storage(kind, row_bytes, math.prod(tensor.shape[:-1]) * row_bytes)


def _check_extents(header: GGUFHeader, sizes: Mapping[str, int]) -> None:
    end = 0
    for name, tensor in sorted(header.tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            raise CheckpointError(f"{header.path}: tensor {name} overlaps another")
        end = tensor.offset + sizes[name]
        if end > header.size:
            raise CheckpointError(f"{header.path} is cut off within tensor {name}")
