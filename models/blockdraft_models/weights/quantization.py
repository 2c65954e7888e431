"""Int8 weights: every row of a decoder layer's matrix as whole numbers times one scale.

Only the weights are rounded: activations and sums stay in the compute dtype, and so do embedding,
head, norms and biases. What a file has in a format of GGUF is held as it is.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from flax import nnx
from jaxtyping import Float32, Int8

from blockdraft_models.decoder.layer import Embedding, Linear
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.stored import Format
from blockdraft_models.families.tensors import TensorName

WeightFormat = Literal["stored", "float", "int8"]
"""Form of matrices: "stored" as in the checkpoint where kernels read that, else as for "float";
"float" in the compute dtype; "int8" with scales for those of the layers."""

_LARGEST = 127
# A smaller scale would be flushed to zero where subnormal numbers are.
_SMALLEST_SCALE = np.finfo(np.float32).tiny
# Elements divided at a time, in float64: what fits a core's cache.
_BLOCK_ELEMENTS = 1 << 16


class QuantizedRows(NamedTuple):
    """Rows as `values * scale[:, None]`, values from -127 to 127; scale is 0 for a row of zeros."""

    values: Int8[np.ndarray, "rows columns"]
    scale: Float32[np.ndarray, " rows"]


def quantize_rows(weight: Float32[np.ndarray, "rows columns"]) -> QuantizedRows:
    """Round each row to 255 equally spaced values, its largest element being one of the ends.

    No element changes by more than half its row's scale. ValueError if one is infinite or not a
    number.
    """
    largest = np.maximum(weight.max(axis=1), -weight.min(axis=1))
    if not np.isfinite(largest).all():
        raise ValueError("elements that are infinite or not a number cannot be int8")
    scale = np.where(largest > 0, np.maximum(largest / _LARGEST, _SMALLEST_SCALE), 0)
    divisor = np.where(largest > 0, scale, 1)[:, None]
    values = np.empty(weight.shape, np.int8)
    block = max(1, _BLOCK_ELEMENTS // weight.shape[1])
    for start in range(0, len(weight), block):
        rows = slice(start, start + block)
        # The quotient of two float32 is never so close to a half that float64 rounds it wrongly.
        values[rows] = np.rint(np.divide(weight[rows], divisor[rows], dtype=np.float64))
    return QuantizedRows(values, scale.astype(np.float32))


def is_quantized(name: TensorName) -> bool:
    """Return whether "int8" quantizes this weight, which has to be a matrix of a layer.

    Matrices of experts, and their routers, stay as they are.
    """
    is_matrix = name.path.endswith(".weight") and len(name.shape) == 2
    return name.path.startswith("layers.") and is_matrix


def scale_path(name: TensorName) -> str:
    """Return the path, in `Decoder`, of the scales of an int8 weight."""
    return name.path.removesuffix("weight") + "scale"


def hold_stored(decoder: Decoder, formats: Mapping[str, Format]) -> None:
    """Replace the matrices in `formats` by zeros of their format, in a decoder not yet scanned."""
    for path, module in nnx.iter_modules(decoder):
        if isinstance(module, Linear | Embedding):
            place = ".".join(map(str, path))
            format = formats.get(f"{place}.weight") or formats.get(f"{place}.table")
            if format is not None:
                module.hold_stored(format)


def hold_int8(decoder: Decoder) -> Decoder:
    """Replace the layers' matrices by int8 zeros with scales, in a decoder not yet scanned."""
    for layer in decoder.layers:
        for _, module in nnx.iter_graph(layer):
            if isinstance(module, Linear):
                module.hold_int8()
    return decoder
