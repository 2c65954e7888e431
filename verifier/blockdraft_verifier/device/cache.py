"""The arrays of the paged cache: keys and values on the device, features on the host."""

from collections.abc import Iterator, Sequence
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


class Positions(NamedTuple):
    """Positions `start` to `stop` of the sequence that owns `pages`."""

    pages: Sequence[int]
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many these are."""
        return self.stop - self.start


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
        done = 0
        for run in self._runs(pages, start, start + len(features)):
            count = run.stop - run.start
            self._rows[run] = features[done : done + count]
            done += count

    def read(self, positions: Sequence[Positions], out: np.ndarray | None = None) -> np.ndarray:
        """Return the features of some positions as `[positions, width]`.

        Args:
            positions: Of any sequences, one after another.
            out: Where to put them; a new array if there is none.
        """
        rows = sum(place.rows for place in positions)
        out = np.empty((rows, self.width), self.dtype) if out is None else out
        done = 0
        for place in positions:
            for run in self._runs(*place):
                count = run.stop - run.start
                out[done : done + count] = self._rows[run]
                done += count
        return out

    def _runs(self, pages: Sequence[int], start: int, stop: int) -> Iterator[slice]:
        """Return where positions `start` to `stop` lie, page by page."""
        size = self._page_size
        while start < stop:
            page, offset = divmod(start, size)
            count = min(size - offset, stop - start)
            first = pages[page] * size + offset
            yield slice(first, first + count)
            start += count


def token_slots(pages: Sequence[int], start: int, stop: int, page_size: int) -> np.ndarray:
    """Return the cache slots, `page * page_size + offset`, of positions `start` to `stop`."""
    first = start // page_size
    # Only the pages in question: a long sequence has many more.
    table = np.asarray(pages[first : -(-stop // page_size)], dtype=np.int32)
    page, offset = np.divmod(np.arange(start, stop, dtype=np.int32), page_size)
    slots: np.ndarray = table[page - first] * page_size + offset
    return slots
