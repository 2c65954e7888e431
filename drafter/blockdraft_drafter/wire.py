"""Wire tensors to arrays, without copying."""

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from blockdraft_protos.v1 import drafter_pb2

DTYPES: dict[drafter_pb2.DataType.ValueType, np.dtype[Any]] = {
    drafter_pb2.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    drafter_pb2.DATA_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


def data_type(dtype: np.dtype[Any]) -> drafter_pb2.DataType.ValueType:
    """Return the wire name of an element type.

    Raises:
        ValueError: If it has none.
    """
    for name, known in DTYPES.items():
        if known == dtype:
            return name
    raise ValueError(f"element type {dtype} cannot be sent; use float32 or bfloat16")


def encode(array: NDArray[Any]) -> drafter_pb2.Tensor:
    """Return `array` as a wire tensor.

    Raises:
        ValueError: If its element type cannot be sent.
    """
    return drafter_pb2.Tensor(
        shape=array.shape, dtype=data_type(array.dtype), data=array.tobytes(order="C")
    )


def decode(tensor: drafter_pb2.Tensor) -> NDArray[Any]:
    """Return a read-only view of a wire tensor's bytes.

    Raises:
        ValueError: If the element type is unknown, an axis is negative, or the number of bytes
            does not fit shape and element type.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"unknown element type {tensor.dtype}")
    shape = tuple(tensor.shape)
    if any(size < 0 for size in shape):
        raise ValueError(f"negative axis in shape {list(shape)}")
    expected = math.prod(shape) * dtype.itemsize
    if len(tensor.data) != expected:
        raise ValueError(
            f"{len(tensor.data)} bytes of data, but shape {list(shape)} of {dtype} takes {expected}"
        )
    return np.frombuffer(tensor.data, dtype=dtype).reshape(shape)
