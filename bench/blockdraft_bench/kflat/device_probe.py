"""What the device of this process can do: published figures, or two small measurements.

Peak arithmetic is a square matrix product of the element type; bandwidth is a maximum over the
rows of a float32 matrix far larger than any cache. The fastest run counts, since a roofline is
a bound.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from blockdraft_aot.roofline import PUBLISHED, Roofline

# Sizes that take a CPU core some tenths of a second, and an accelerator no noticeable time.
MATRIX_SIZE = 1536
STREAM_SHAPE = (8192, 8192)


class DeviceProbe:
    """Measures the roofline of the default device, a little in every call of `sample`."""

    def __init__(
        self,
        dtype: DTypeLike,
        matrix_size: int = MATRIX_SIZE,
        stream_shape: tuple[int, int] = STREAM_SHAPE,
    ) -> None:
        """Prepare; the published figures of a known accelerator need no measurement.

        Args:
            dtype: Element type of the arithmetic.
            matrix_size: Rows of the square matrices that are multiplied.
            stream_shape: Of the matrix that is read.
        """
        kind = jax.devices()[0].device_kind
        # The makers' figures are those of bfloat16.
        self._published = PUBLISHED.get(kind) if jnp.dtype(dtype) == jnp.bfloat16 else None
        self._flops_per_second: list[float] = []
        self._bytes_per_second: list[float] = []
        if self._published is not None:
            return
        square = jnp.ones((matrix_size, matrix_size), dtype)
        stream = jnp.ones(stream_shape, jnp.float32)
        self._flops, self._bytes = 2 * matrix_size**3, stream.nbytes
        self._multiply = functools.partial(jax.jit(jnp.matmul), square, square)
        self._read = functools.partial(jax.jit(functools.partial(jnp.max, axis=1)), stream)
        _seconds(self._multiply), _seconds(self._read)  # compiles

    def sample(self) -> None:
        """Measure once."""
        if self._published is None:
            self._flops_per_second.append(self._flops / _seconds(self._multiply))
            self._bytes_per_second.append(self._bytes / _seconds(self._read))

    def roofline(self) -> Roofline:
        """Return the figures; `sample` must have run."""
        if self._published is not None:
            return self._published
        return Roofline(max(self._flops_per_second), max(self._bytes_per_second), "measured")


def _seconds(call: Any) -> float:
    started = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - started
