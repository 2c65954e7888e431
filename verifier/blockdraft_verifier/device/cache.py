"""The arrays of the paged cache: keys and values on the device, features on the host."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from blockdraft_verifier.device.cache_layout import CacheLayout


class LayeredCache(NamedTuple):
    """The cache of all layers, and whose turn it is; what scanned layers hand on.

    Attributes:
        pages: Float[Array, "layers*pages page_size kv_slots head_dim"].
        layer: Int[Array, ""], the layer that comes next.
    """

    pages: Array
    layer: Array


LayerCaches = list[Array] | list[LayeredCache]
"""One array per layer, or the one of all layers."""


def allocate_kv(layout: CacheLayout) -> LayerCaches:
    """Return the zeroed cache, keys in even and values in odd head slots."""
    where = layout.sharding
    arrays = [
        jnp.zeros(layout.shape, layout.dtype, device=where) for _ in range(layout.array_count)
    ]
    if not layout.stacked:
        return arrays
    return [LayeredCache(arrays[0], jnp.zeros((), jnp.int32, device=layout.replicated))]


class FeatureStore:
    """Features of every committed position, addressed by the same pages as the K/V.

    Features leave the device anyway, on their way to the drafter. Kept here they let a drafter's
    context be built again after a restart, and a sequence that takes over cached pages be drafted
    for, without computing anything twice. Host memory, 1/8 of the K/V for the default target.
    """

    def __init__(self, num_pages: int, page_size: int, width: int, dtype: np.dtype) -> None:
        """Hold `width` elements for each of `num_pages * page_size` positions."""
        self.width = width
        self.dtype = dtype
        self._page_size = page_size
        self._rows = np.zeros((num_pages * page_size, width), dtype)

    def write(self, pages: Sequence[int], start: int, features: np.ndarray) -> None:
        """Keep features of the positions from `start` on of the sequence that owns `pages`."""
        self._rows[self._slots(pages, start, start + len(features))] = features

    def read(
        self, pages: Sequence[int], start: int, stop: int, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the features of positions `start` to `stop` as `[positions, width]`.

        Args:
            pages: Of the sequence.
            start: First position.
            stop: Position after the last one.
            out: Where to put them; a new array if there is none.
        """
        slots = self._slots(pages, start, stop)
        # No slot is out of range; with this mode NumPy writes to `out` without a copy in between.
        rows: np.ndarray = np.take(self._rows, slots, axis=0, out=out, mode="clip")
        return rows

    def _slots(self, pages: Sequence[int], start: int, stop: int) -> np.ndarray:
        return token_slots(pages, start, stop, self._page_size)


def token_slots(pages: Sequence[int], start: int, stop: int, page_size: int) -> np.ndarray:
    """Return the cache slots, `page * page_size + offset`, of positions `start` to `stop`."""
    positions = np.arange(start, stop, dtype=np.int32)
    table = np.asarray(pages, dtype=np.int32)
    slots: np.ndarray = table[positions // page_size] * page_size + positions % page_size
    return slots
