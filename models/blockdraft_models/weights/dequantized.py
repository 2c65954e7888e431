"""Quantized Hugging Face checkpoints, whose quantized tensors read as float32.

FP8 in blocks ("fp8", as Qwen3 publishes it) or with a scale for each row or matrix, and int8
("compressed-tensors"), and MXFP4 (gpt-oss). Activations are not quantized here, whatever the
checkpoint says of them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.huggingface import Index, SafetensorsWeights

_ALL = slice(None)
_SCALES = ("_scale_inv", "_scale")
_BLOCKS, _BLOCK_SCALES = "_blocks", "_scales"
# Scales for computing with quantized activations or caches, which are left out.
_OTHER_SCALES = ("input_scale", "k_scale", "v_scale", "q_scale")
_NARROW = ("F8_E4M3", "I8")
_COMPRESSED = ("float-quantized", "int-quantized", "naive-quantized")
# The 16 numbers of E2M1 (OCP Microscaling Formats 1.0, section 5.3.3).
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1 = np.concatenate([_E2M1, -_E2M1])


def check_quantization(quantization: Mapping[str, Any]) -> None:
    """Refuse by a ValueError a `quantization_config` whose tensors cannot be read."""
    method = quantization.get("quant_method")
    if method is None:
        raise ValueError("quantization_config has no quant_method")
    if method == "compressed-tensors":
        form = quantization.get("format")
        if form not in _COMPRESSED:
            raise ValueError(
                f"compressed tensors of format {form!r} are not supported (supported: "
                f"{', '.join(_COMPRESSED)})"
            )
    elif method not in ("fp8", "mxfp4"):
        raise ValueError(
            f"checkpoints quantized by {method!r} are not supported (supported: fp8, mxfp4, "
            "compressed-tensors)"
        )


class DequantizedWeights:
    """The tensors of a quantized directory; scales are not among them.

    A quantized tensor reads as float32; MXFP4 as the matrices [in, out] of experts.
    """

    def __init__(self, stored: SafetensorsWeights) -> None:
        """Read through `stored`."""
        self._stored = stored
        self._shapes = stored.shapes()
        self._scale_of = {
            name: name + suffix
            for name in self._shapes
            for suffix in _SCALES
            if name + suffix in self._shapes and stored.dtype(name) in _NARROW
        }
        # Tensors without the form of MXFP4 keep their names, which no decoder has.
        self._blocked = {
            name.removesuffix(_BLOCKS)
            for name in self._shapes
            if name.endswith(_BLOCKS) and self._is_mxfp4(name.removesuffix(_BLOCKS))
        }

    def _is_mxfp4(self, base: str) -> bool:
        blocks, scales = base + _BLOCKS, base + _BLOCK_SCALES
        shape = self._shapes[blocks]
        return (
            len(shape) == 4
            and shape[3] == 16
            and self._shapes.get(scales) == shape[:3]
            and self._stored.dtype(blocks) == self._stored.dtype(scales) == "U8"
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor by name, in the order in which the files hold them."""
        scales = set(self._scale_of.values())
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in self._shapes.items():
            base = name.removesuffix(_BLOCKS)
            if base in self._blocked and name != base:
                experts, rows, groups, _ = shape
                shapes[base] = experts, groups * 32, rows
            elif not (
                name in scales
                or name.endswith(_OTHER_SCALES)
                or name.removesuffix(_BLOCK_SCALES) in self._blocked
            ):
                shapes[name] = shape
        return shapes

    def files(self) -> list[Path]:
        """Return the shards."""
        return self._stored.files()

    def check_floats(self, names: Iterable[str]) -> None:
        """Check that tensors which are not quantized hold floats of at least 16 bits."""
        quantized_names = (*self._scale_of, *self._blocked)
        self._stored.check_floats(name for name in names if name not in quantized_names)

    def read(self, name: str, rows: slice = _ALL) -> Any:
        """Read rows of a tensor, with step one, into a fresh array."""
        if name in self._blocked:
            blocks = self._stored.read(name + _BLOCKS, rows)
            return _mxfp4(blocks, self._stored.read(name + _BLOCK_SCALES, rows))
        stored = self._stored.read(name, rows)
        if name not in self._scale_of:
            return stored
        scale = np.asarray(self._stored.read(self._scale_of[name]), np.float32)
        start = rows.start or 0
        return np.asarray(stored, np.float32) * _of_rows(
            scale, self._shapes[name], slice(start, start + len(stored)), f"scale of {name}"
        )

    def read_part(self, name: str, index: Index) -> Any:
        """Read a part of a tensor; of a quantized one the whole rows are read."""
        if name in self._blocked or name in self._scale_of:
            return self.read(name, index[0])[(_ALL, *index[1:])]
        return self._stored.read_part(name, index)


def _of_rows(scale: Any, shape: tuple[int, ...], rows: slice, description: str) -> Any:
    """Return scales that broadcast to the elements of some rows."""
    if scale.size == 1:
        return scale.reshape(())
    if scale.shape in ((shape[0],), (shape[0], 1)):
        return scale.reshape(-1, 1)[rows]
    # Blocks have one size but at the ends: 128, or the next power of two.
    sides = [
        1 << (-(-size // max(1, count)) - 1).bit_length()
        for size, count in zip(shape, scale.shape, strict=False)
    ]
    counts = tuple(-(-size // side) for size, side in zip(shape, sides, strict=False))
    if not (len(shape) == scale.ndim == 2 and scale.shape == counts):
        raise CheckpointError(f"{description} is {scale.shape}, the weight {shape}")
    of_row = np.arange(rows.start, rows.stop) // sides[0]
    return scale[of_row][:, np.arange(shape[1]) // sides[1]]


def _mxfp4(blocks: Any, scales: Any) -> Any:
    """Return matrices [experts, in, out] of blocks [experts, out, groups, 16], two to a byte."""
    experts, rows, groups, half = blocks.shape
    numbers = np.empty((experts, rows, groups, 2 * half), np.float32)
    numbers[..., 0::2] = _E2M1[blocks & 15]
    numbers[..., 1::2] = _E2M1[blocks >> 4]
    # E8M0: powers of two, of which a float32 holds all but the two least.
    numbers = np.ldexp(numbers, (scales.astype(np.int32) - 127)[..., None])
    return numbers.reshape(experts, rows, groups * 2 * half).swapaxes(1, 2)
