"""Writers of features for the drafter: in the message, or in memory that it maps too."""

import logging
import mmap
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.shared_memory import SharedFile, socket_folder
from blockdraft_verifier.device.cache import FEATURE_DTYPE, FeatureStore, Positions

logger = logging.getLogger(__name__)

SHARED_BYTES = 64 * 1024 * 1024
"""Size of the shared memory: that of several requests with as many features as they may bring."""
ALIGNMENT = 64
"""Where a region of it begins, in bytes; arrays that do are copied fastest."""


class MessageWriter:
    """Puts features into the message itself.

    Attributes:
        name: What it is, for the log.
    """

    name = "messages"

    def write(
        self, tensor: pb.Tensor, step_id: int, store: FeatureStore, positions: Sequence[Positions]
    ) -> None:
        """Say in `tensor`, an empty part of the request, what the features of positions are."""
        rows = store.read(positions)
        tensor.shape.extend(rows.shape)
        tensor.dtype = pb.DATA_TYPE_BFLOAT16
        tensor.data = rows.tobytes()

    def answered(self, step_id: int) -> None:
        """Learn that the drafter is done with the features of this step and of all before it."""


class SharedWriter(MessageWriter):
    """Puts features into shared memory, or into the message while that is full."""

    name = "shared memory"

    def __init__(self, memory: mmap.mmap) -> None:
        """Write to `memory`, which the drafter has mapped."""
        self._bytes = np.frombuffer(memory, np.uint8)
        self._ring = Ring(len(memory))

    def write(
        self, tensor: pb.Tensor, step_id: int, store: FeatureStore, positions: Sequence[Positions]
    ) -> None:
        """Say where in the shared memory the features are."""
        shape = (sum(place.rows for place in positions), store.width)
        size = shape[0] * shape[1] * FEATURE_DTYPE.itemsize
        offset = self._ring.take(step_id, size)
        if offset is None:
            super().write(tensor, step_id, store, positions)
            return
        place = self._bytes[offset : offset + size].view(FEATURE_DTYPE).reshape(shape)
        store.read(positions, out=place)
        tensor.shape.extend(shape)
        tensor.dtype = pb.DATA_TYPE_BFLOAT16
        tensor.shared_offset = offset

    def answered(self, step_id: int) -> None:
        """Give the step's region back."""
        self._ring.give_back(step_id)


class _Region(NamedTuple):
    step_id: int
    start: int
    stop: int


class Ring:
    """Regions of a ring of `size` bytes, taken in order and given back in order."""

    def __init__(self, size: int) -> None:
        """Start with nothing in use."""
        self._size = size
        self._used: deque[_Region] = deque()

    def take(self, step_id: int, size: int) -> int | None:
        """Return where a region of `size` bytes begins, or None if there is no room now.

        Step numbers never fall from one call to the next.
        """
        start = self._next_start(size)
        if start is not None:
            self._used.append(_Region(step_id, start, start + size))
        return start

    def give_back(self, step_id: int) -> None:
        """Give back what was taken for this step and all before it."""
        while self._used and self._used[0].step_id <= step_id:
            self._used.popleft()

    def _next_start(self, size: int) -> int | None:
        if not self._used:
            return 0 if size <= self._size else None
        oldest, newest = self._used[0], self._used[-1]
        after = -(-newest.stop // ALIGNMENT) * ALIGNMENT
        if newest.start >= oldest.start:
            if after + size <= self._size:
                return after
            # The rest of the ring is too small; go on at its beginning.
            after = 0
        return after if after + size <= oldest.start else None


def offer_shared_memory(address: str) -> SharedFile | None:
    """Return memory for the drafter at `address` to map; None on another host or without room."""
    # A process that shares the folder of a socket shares its files too.
    folder = socket_folder(address)
    if folder is None:
        return None
    try:
        return SharedFile.create(folder, SHARED_BYTES)
    except OSError as error:
        logger.info("features go through the socket, not through shared memory: %s", error)
        return None
