"""Where the positions of a sequence lie in a paged cache, one by one."""

from collections.abc import Sequence

import numpy as np


def token_slots(pages: Sequence[int], start: int, stop: int, page_size: int) -> np.ndarray:
    """Return the cache slots, `page * page_size + offset`, of positions `start` to `stop`."""
    slots = [
        pages[position // page_size] * page_size + position % page_size
        for position in range(start, stop)
    ]
    return np.array(slots, np.int32)
