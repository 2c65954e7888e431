"""Tensors of a GGUF file, dequantized one at a time."""

import math

import numpy as np
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from jaxtyping import Float

from blockdraft_models.errors import CheckpointError
from blockdraft_models.gguf import GGUFHeader

_SLICE_ROWS = 2048
# `dequantize` wants unquantized data in its own dtype.
_PLAIN = {"F32": "<f4", "F16": "<f2"}


class GGUFWeights:
    """The tensors of a GGUF file as float32 arrays, dequantized one at a time."""

    def __init__(self, header: GGUFHeader) -> None:
        """Maps the file of `header`."""
        self._header = header
        # A plain view: slicing np.memmap objects costs as much as dequantizing.
        self._data = np.memmap(header.path, dtype=np.uint8, mode="r").view(np.ndarray)

    def __enter__(self) -> "GGUFWeights":
        """Returns self."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Drops the mapping."""
        del self._data

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every tensor by name."""
        return {name: tensor.shape for name, tensor in self._header.tensors.items()}

    def read(self, name: str, rows: int | None = None) -> Float[np.ndarray, "..."]:
        """Dequantizes a tensor.

        Args:
            name: One of `shapes()`.
            rows: How many leading rows to read; all of them when None.

        Returns:
            A fresh float32 array.

        Raises:
            CheckpointError: If the data is cut off or of an unknown quantization.
        """
        tensor = self._header.tensors[name]
        try:
            kind = GGMLQuantizationType(tensor.ggml_type)
            block, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{name} has unknown ggml type {tensor.ggml_type}") from error
        shape = tensor.shape if rows is None else (min(rows, tensor.shape[0]), *tensor.shape[1:])
        if shape[-1] % block:
            raise CheckpointError(f"{name}: {shape[-1]} columns are not blocks of {block}")
        byte_shape = (*shape[:-1], shape[-1] // block * block_bytes)
        count = math.prod(byte_shape)
        if tensor.offset + count > self._header.size:
            raise CheckpointError(f"{self._header.path} is cut off within tensor {name}")
        raw = self._data[tensor.offset : tensor.offset + count].reshape(byte_shape)
        raw = raw.view(_PLAIN.get(kind.name, "u1"))
        values = np.empty(shape, np.float32)
        # In slices: dequantizing an embedding at once would need several times its size.
        for start in range(0, shape[0], _SLICE_ROWS):
            part = slice(start, start + _SLICE_ROWS)
            try:
                values[part] = dequantize(raw[part], kind)
            except NotImplementedError as error:
                raise CheckpointError(f"{name}: {kind.name} is not supported") from error
        return values
