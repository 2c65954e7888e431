"""The roofline: the least time a device can need for given arithmetic and given traffic.

Williams, Waterman and Patterson 2009: a step that does `flops` operations on `bytes` of memory
takes at least `max(flops / peak, bytes / bandwidth)`.

Published figures of one chip, bfloat16 without sparsity:

* TPU v5p 459 TFLOP/s, 2765 GB/s (cloud.google.com/tpu/docs/v5p);
* TPU v5e 197 TFLOP/s, 819 GB/s (cloud.google.com/tpu/docs/v5e);
* TPU v6e 918 TFLOP/s, 1640 GB/s (cloud.google.com/tpu/docs/v6e);
* TPU7x 2307 TFLOP/s, 7380 GB/s (cloud.google.com/tpu/docs/tpu7x), half of it for each of the two
  devices that a chip is to JAX;
* H100 SXM 989.4 TFLOP/s, 3350 GB/s (NVIDIA H100 datasheet, half of the figure with sparsity);
* H200 SXM 989.4 TFLOP/s, 4800 GB/s (NVIDIA H200 datasheet, likewise).
"""

from dataclasses import dataclass
from typing import Literal

Source = Literal["published", "measured"]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Peak rates of a device."""

    peak_flops: float  # floating point operations per second of its matrix units
    bandwidth: float  # bytes per second from its main memory
    source: Source  # whether the figures are the maker's or were measured in the same run

    def seconds(self, flops: float, memory_bytes: float) -> float:
        """Return the least seconds of a step."""
        return max(flops / self.peak_flops, memory_bytes / self.bandwidth)

    def compute_bound(self, flops: float, memory_bytes: float) -> bool:
        """Return whether arithmetic, not memory, sets the least time of a step."""
        return flops / self.peak_flops >= memory_bytes / self.bandwidth

    def knee_tokens(self, bytes_per_weight: int) -> float:
        """Return the tokens K* from which on reading the weights takes less than using them.

        Each weight is read once for a step and used for 2 operations on each token, so both take
        as long at `K* = peak * bytes_per_weight / (2 * bandwidth)`.
        """
        return self.peak_flops * bytes_per_weight / (2 * self.bandwidth)


_V5P = Roofline(459e12, 2765e9, "published")
_V5E = Roofline(197e12, 819e9, "published")
_V6E = Roofline(918e12, 1640e9, "published")
# By the name JAX gives the device.
PUBLISHED = {
    "TPU v5": _V5P,
    "TPU v5p": _V5P,
    "TPU v5 lite": _V5E,
    "TPU v5e": _V5E,
    "TPU v6 lite": _V6E,
    "TPU v6e": _V6E,
    "TPU7x": Roofline(2307e12 / 2, 7380e9 / 2, "published"),
    "NVIDIA H100 80GB HBM3": Roofline(989.4e12, 3350e9, "published"),
    "NVIDIA H200": Roofline(989.4e12, 4800e9, "published"),
}
