"""Int8 weights: every output of a matrix as whole numbers times one scale.

Matrices of the layers, of their experts, and a head of its own are rounded. Activations and sums
stay in the compute dtype, and so do embedding, routers, norms and biases.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from flax import nnx
from jaxtyping import Float32, Int8

from blockdraft_models.decoder.experts import ExpertMaps
from blockdraft_models.decoder.linear import Embedding, Linear
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.stored import Format
from blockdraft_models.families.tensors import TensorName

WeightFormat = Literal["stored", "float", "int8"]
"""Form of matrices: "stored" as in the checkpoint where kernels read that, else as for "float";
"float" in the compute dtype; "int8" with scales, but for embedding and routers."""

_LARGEST = 127
# A smaller scale would be flushed to zero where subnormal numbers are.
_SMALLEST_SCALE = np.finfo(np.float32).tiny
# Elements divided at a time, in float64: what fits a core's cache.
_BLOCK_ELEMENTS = 1 << 16


class Quantized(NamedTuple):
    """A weight as `values * scale`, values from -127 to 127; zeros have a scale of 0.

    The scale lacks the axis of inputs.
    """

    values: Int8[np.ndarray, "..."]
    scale: Float32[np.ndarray, "..."]


def quantize(weight: Float32[np.ndarray, "..."], inputs: int = 1) -> Quantized:
    """Round all along the axis `inputs` to 255 equally spaced values; the largest becomes an end.

    No element changes by more than half its scale. ValueError if one is infinite or not a number.
    """
    largest = np.maximum(weight.max(axis=inputs), -weight.min(axis=inputs))
    if not np.isfinite(largest).all():
        raise ValueError("elements that are infinite or not a number cannot be int8")
    scale = np.where(largest > 0, np.maximum(largest / _LARGEST, _SMALLEST_SCALE), 0)
    divisor = np.expand_dims(np.where(largest > 0, scale, 1), inputs)
    values = np.empty(weight.shape, np.int8)
    block = max(1, _BLOCK_ELEMENTS // math.prod(weight.shape[1:]))
    for start in range(0, len(weight), block):
        rows = slice(start, start + block)
        # The quotient of two float32 is never so close to a half that float64 rounds it wrongly.
        values[rows] = np.rint(np.divide(weight[rows], divisor[rows], dtype=np.float64))
    return Quantized(values, scale.astype(np.float32))


def is_quantized(name: TensorName) -> bool:
    """Return whether "int8" quantizes this weight: a matrix of a layer or of experts, or a head."""
    is_matrix = name.path.endswith(".weight") and len(name.shape) > 1
    return name.path.startswith(("layers.", "head.")) and is_matrix


def input_axis(name: TensorName) -> int:
    """Return the axis of a weight along which it is quantized."""
    return 1 if len(name.shape) == 2 or name.outputs_last else 2


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
    """Replace those matrices by int8 zeros with scales, in a decoder not yet scanned."""
    for path, module in nnx.iter_modules(decoder):
        if isinstance(module, Linear | ExpertMaps) and path[0] in ("layers", "head"):
            module.hold_int8()
    return decoder
