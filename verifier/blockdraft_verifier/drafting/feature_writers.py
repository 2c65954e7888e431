"""How features reach the drafter: in the message, or through memory that it maps too."""

import logging
import mmap
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.shared_memory import SharedFile, socket_folder
from blockdraft_verifier.device.cache import FeatureStore, Positions
from blockdraft_verifier.drafting.feature_ring import Ring

logger = logging.getLogger(__name__)

SHARED_BYTES = 64 * 1024 * 1024
"""Size of the shared memory: that of several requests with as many features as they may bring."""


@runtime_checkable
class FeatureWriter(Protocol):
    """Puts features where the drafter finds them.

    Attributes:
        name: What they go through, for people.
    """

    name: str

    def write(
        self, tensor: pb.Tensor, step_id: int, store: FeatureStore, positions: Sequence[Positions]
    ) -> None:
        """Say in `tensor` what the features of some positions are.

        Args:
            tensor: A part of the request; empty.
            step_id: Of the request.
            store: Where the features are.
            positions: Whose, sequence after sequence.
        """

    def answered(self, step_id: int) -> None:
        """Learn that the drafter needs nothing of this step and those before it any more."""


class MessageWriter:
    """Puts features into the message itself."""

    name = "messages"

    def write(
        self, tensor: pb.Tensor, step_id: int, store: FeatureStore, positions: Sequence[Positions]
    ) -> None:
        """Put the features' bytes into the tensor."""
        rows = store.read(positions)
        tensor.shape.extend(rows.shape)
        tensor.dtype = pb.DATA_TYPE_BFLOAT16
        tensor.data = rows.tobytes()

    def answered(self, step_id: int) -> None:
        """Nothing is kept."""


class SharedWriter:
    """Puts features into shared memory, and into the message what finds no room there."""

    name = "shared memory"

    def __init__(self, memory: mmap.mmap) -> None:
        """Write to `memory`, which the drafter has mapped."""
        self._bytes = np.frombuffer(memory, np.uint8)
        self._ring = Ring(len(memory))
        self._message = MessageWriter()

    def write(
        self, tensor: pb.Tensor, step_id: int, store: FeatureStore, positions: Sequence[Positions]
    ) -> None:
        """Say where in the shared memory the features are."""
        shape = (sum(place.rows for place in positions), store.width)
        size = shape[0] * shape[1] * store.dtype.itemsize
        offset = self._ring.take(step_id, size)
        if offset is None:
            self._message.write(tensor, step_id, store, positions)
            return
        place = self._bytes[offset : offset + size].view(store.dtype).reshape(shape)
        store.read(positions, out=place)
        tensor.shape.extend(shape)
        tensor.dtype = pb.DATA_TYPE_BFLOAT16
        tensor.shared_offset = offset

    def answered(self, step_id: int) -> None:
        """Give the step's room back."""
        self._ring.give_back(step_id)


def offer_shared_memory(address: str) -> SharedFile | None:
    """Return memory for a drafter to map, or None where it is on another host or there is no room.

    Args:
        address: The drafter's. Whoever shares the folder of a socket shares its files too.
    """
    folder = socket_folder(address)
    if folder is None:
        return None
    try:
        return SharedFile.create(folder, SHARED_BYTES)
    except OSError as error:
        logger.info("features go through the socket, not through shared memory: %s", error)
        return None
