"""Turning the rows of a step into the fixed shapes that were compiled."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockdraft_drafter.method import DraftRow
from blockdraft_models.decoder.sampling import SamplingArrays, pack_sampling

KEPT_CHOICES = 16
"""Number of the latest recycled choices that are kept of each sequence."""

# A NumPy array where it is packed, a traced one inside the compiled step.
HostOrDevice = Any


class PackedFeatures(NamedTuple):
    """Features of any number of sequences, one position after another; a pytree."""

    features: HostOrDevice  # [positions, feature_width]; zeros in padding
    # Cache slot of each, [positions]; out of range in padding, hence never written.
    slots: HostOrDevice
    positions: HostOrDevice  # position of each in its sequence, [positions]
    # Token after each one's own, [positions]; 0 where they came without tokens.
    next_tokens: HostOrDevice


class PackedRecycled(NamedTuple):
    """The latest recycled choices of each block, [blocks, choices]; -1 where there is none."""

    positions: HostOrDevice  # of the choice
    after: HostOrDevice  # the target's id of the token before it
    tokens: HostOrDevice  # index of the choice in the draft vocabulary; -1 if it is not there


class PackedBlocks(NamedTuple):
    """The blocks to draft; a pytree of jit arguments."""

    slots: HostOrDevice  # cache slot of each block, [blocks]
    # Committed positions once the step's features are appended; 0 in padding, [blocks].
    lengths: HostOrDevice
    anchors: HostOrDevice  # anchor of each block, [blocks]
    # Tokens to draft for each block; 0 in padding, [blocks].
    draft_lengths: HostOrDevice
    # A draft may end where the chance that all of it is right falls below this, [blocks].
    least_chances: HostOrDevice
    sampling: SamplingArrays  # how the target will choose after each anchor; greedily in padding
    recycled: PackedRecycled


def flatten_features(rows: Sequence[DraftRow]) -> PackedFeatures:
    """Lay the features of all rows side by side, without padding."""
    counts = [row.features.shape[0] for row in rows]
    positions = [
        np.arange(row.context_length, row.context_length + count, dtype=np.int32)
        for row, count in zip(rows, counts, strict=True)
    ]
    return PackedFeatures(
        np.concatenate([row.features for row in rows]),
        np.repeat(np.array([row.slot for row in rows], np.int32), counts),
        np.concatenate(positions),
        np.concatenate([_next_tokens(row) for row in rows]),
    )


def _next_tokens(row: DraftRow) -> NDArray[np.int32]:
    if not row.token_ids:
        return np.zeros(row.features.shape[0], np.int32)
    return np.array((*row.token_ids[1:], row.anchor_token_id), np.int32)


def split_features(flat: PackedFeatures, remainder: int, maximum: int) -> Iterator[PackedFeatures]:
    """Cut flat features into parts of at most `maximum`, and a last one of at most `remainder`."""
    start, end = 0, flat.slots.shape[0]
    while end - start > remainder:
        stop = min(start + maximum, end)
        yield PackedFeatures(*(array[start:stop] for array in flat))
        start = stop
    yield PackedFeatures(*(array[start:] for array in flat))


def pad_features(flat: PackedFeatures, size: int, *, nowhere: int) -> PackedFeatures:
    """Pad flat features to `size` with features of the slot `nowhere`, which are not written."""

    def padded(array: NDArray[Any], fill: int = 0) -> NDArray[Any]:
        # `np.pad` takes a hundred times as long for bfloat16.
        whole = np.zeros((size, *array.shape[1:]), array.dtype)
        whole[: len(array)] = array
        whole[len(array) :] = fill
        return whole

    if len(flat.slots) == size:
        return flat
    return PackedFeatures(
        padded(flat.features), padded(flat.slots, nowhere), *map(padded, flat[2:])
    )


def pack_blocks(rows: Sequence[DraftRow], size: int, recycled: PackedRecycled) -> PackedBlocks:
    """Pad the blocks of the rows that draft to `size` with blocks that see no context."""
    padding = [0] * (size - len(rows))
    return PackedBlocks(
        np.array([row.slot for row in rows] + padding, np.int32),
        np.array([row.context_length + row.features.shape[0] for row in rows] + padding, np.int32),
        np.array([row.anchor_token_id for row in rows] + padding, np.int32),
        np.array([row.draft_length for row in rows] + padding, np.int32),
        np.array([row.least_chance for row in rows] + padding, np.float32),
        pack_sampling([row.sampling for row in rows], size),
        recycled,
    )
