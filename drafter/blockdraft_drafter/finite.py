"""Whether arrays hold numbers."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


def all_finite(values: NDArray[Any]) -> bool:
    """Whether no element is infinite or not a number."""
    if values.dtype != ml_dtypes.bfloat16:
        return bool(np.isfinite(values).all())
    # As integers, which NumPy compares many times as fast: all bits of the exponent are set from
    # 0x7f80 on, and with the bit of the sign before them from 0xff80 on.
    bits = values.view(np.uint16)
    largest, largest_positive = bits.max(initial=0), bits.view(np.int16).max(initial=0)
    return bool(largest < 0xFF80 and largest_positive < 0x7F80)
