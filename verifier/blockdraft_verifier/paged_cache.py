"""The arrays of the paged cache: keys and values on the device, features on the host."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from blockdraft_models.config import DecoderConfig


def allocate_kv(
    config: DecoderConfig, num_pages: int, page_size: int, dtype: DTypeLike
) -> list[Float[Array, "pages page_size kv_slots head_dim"]]:
    """Return one zeroed cache array per layer, keys in even and values in odd head slots.

    One array per layer, not one for all: each can be donated to a step and updated in place.
    """
    shape = (num_pages, page_size, 2 * config.num_kv_heads, config.head_dim)
    return [jnp.zeros(shape, dtype) for _ in range(config.num_layers)]


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

    def read(self, pages: Sequence[int], start: int, stop: int) -> np.ndarray:
        """Return the features of positions `start` to `stop` as `[positions, width]`."""
        rows: np.ndarray = self._rows[self._slots(pages, start, stop)]
        return rows

    def _slots(self, pages: Sequence[int], start: int, stop: int) -> np.ndarray:
        return token_slots(pages, start, stop, self._page_size)


def token_slots(pages: Sequence[int], start: int, stop: int, page_size: int) -> np.ndarray:
    """Return the cache slots, `page * page_size + offset`, of positions `start` to `stop`."""
    positions = np.arange(start, stop, dtype=np.int32)
    table = np.asarray(pages, dtype=np.int32)
    slots: np.ndarray = table[positions // page_size] * page_size + positions % page_size
    return slots
