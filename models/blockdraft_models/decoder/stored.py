"""Matrices in stored forms: in a GGUF format, as scaled whole numbers, or in a stack."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Real, UInt8

Format = Literal["Q4_0", "Q4_1", "Q8_0"]
"""A number of bits, and whether 32 elements share an offset (1) or only a scale (0)."""

FORMATS: tuple[Format, ...] = get_args(Format)

_BLOCK_ELEMENTS = 32
_BLOCK_BYTES: dict[Format, int] = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
_HALF = 2  # bytes of a scale or an offset


def row_bytes(format: Format, columns: int) -> int:
    """Return the bytes of a row of `columns` elements."""
    return columns // _BLOCK_ELEMENTS * _BLOCK_BYTES[format]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix in a GGUF format, in rows of whole blocks; a pytree."""

    blocks: Any  # UInt8[Array, "out row_bytes"]
    format: Format = field(metadata={"static": True})

    def dequantized(self) -> Float32[Array, "out in"]:
        """Return the elements as float32."""
        rows = self.blocks.shape[0]
        blocks = self.blocks.reshape(rows, -1, _BLOCK_BYTES[self.format])
        scale = _half_floats(blocks[..., :_HALF])
        if self.format == "Q8_0":
            stored = jax.lax.bitcast_convert_type(blocks[..., _HALF:], jnp.int8)
            elements = stored.astype(jnp.float32) * scale
        else:
            start = _HALF if self.format == "Q4_0" else 2 * _HALF
            both = blocks[..., start:]
            halves = jnp.concatenate([both & 15, both >> 4], axis=-1).astype(jnp.float32)
            if self.format == "Q4_0":
                elements = (halves - 8) * scale
            else:
                elements = halves * scale + _half_floats(blocks[..., _HALF:start])
        return elements.reshape(rows, -1)

    def __getitem__(self, rows: Any) -> "StoredMatrix":
        """Return some rows."""
        return StoredMatrix(self.blocks[rows], self.format)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class LayerMatrix:
    """One layer's matrix in a stack, out of which slicing would copy it; a pytree."""

    stack: Any  # Real[Array, "layers out in"]
    layer: Any  # Int[Array, ""]

    def alone(self) -> Real[Array, "out in"]:
        """Return the matrix by itself."""
        matrix: Array = self.stack[self.layer]
        return matrix


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """A matrix as `values * scale[:, None]`; a pytree."""

    values: Any  # Int8[Array, "out in"] or a LayerMatrix
    scale: Any  # Float32[Array, "out"]

    def __getitem__(self, rows: Any) -> "ScaledMatrix":
        """Return some rows."""
        return ScaledMatrix(self.values[rows], self.scale[rows])


def _half_floats(parts: UInt8[Array, "rows blocks 2"]) -> Float32[Array, "rows blocks 1"]:
    return jax.lax.bitcast_convert_type(parts, jnp.float16).astype(jnp.float32)[..., None]
