"""A drafter's own, smaller vocabulary: the target's frequent tokens.

For a small target the output head is most of a draft's cost, and a drafter hardly ever guesses a
rare token right. Published as `draft_vocab_size` in the configuration and a tensor `d2t` of
offsets: draft token i is target token i + d2t[i] (EAGLE-3, speculators).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int

from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.huggingface import SafetensorsWeights
from blockdraft_models.weights.loading import EmbeddingAndHead

DRAFT_TO_TARGET = "d2t"
# A mask of the target's vocabulary that some checkpoints carry for training.
TARGET_TO_DRAFT = "t2d"


def draft_offsets(draft_ids: Int[np.ndarray, " draft"]) -> Int[np.ndarray, " draft"]:
    """Return the published form of some target ids."""
    offsets: np.ndarray = draft_ids.astype(np.int64) - np.arange(len(draft_ids))
    return offsets


def draft_ids_of(offsets: Int[np.ndarray, " draft"], vocab_size: int) -> Int[np.ndarray, " draft"]:
    """Return the target ids that published offsets mean.

    Raises:
        CheckpointError: If they are not distinct ids of the target.
    """
    ids = np.arange(len(offsets)) + np.asarray(offsets, np.int64)
    if ids.min() < 0 or ids.max() >= vocab_size or len(np.unique(ids)) < len(ids):
        raise CheckpointError(
            f"{DRAFT_TO_TARGET} does not name distinct tokens of a vocabulary of {vocab_size}"
        )
    return ids.astype(np.int32)


def read_draft_ids(
    path: Path, weights: SafetensorsWeights, names: Mapping[str, str], vocab_size: int
) -> Int[np.ndarray, " draft"]:
    """Read the target ids of a checkpoint's draft vocabulary.

    Args:
        path: The checkpoint, for the message.
        weights: Its tensors.
        names: Stored names by published ones.
        vocab_size: Of the target.

    Raises:
        CheckpointError: If they are not distinct ids of the target.
    """
    offsets = weights.read(names[DRAFT_TO_TARGET])
    try:
        if offsets.dtype.kind not in "iu":
            raise CheckpointError(f"{DRAFT_TO_TARGET} holds {offsets.dtype}, not whole numbers")
        return draft_ids_of(offsets, vocab_size)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def narrowed(
    target: EmbeddingAndHead, draft_ids: Int[np.ndarray, " draft"] | None
) -> EmbeddingAndHead:
    """Return the target's embedding with the head's rows of the draft vocabulary only."""
    if draft_ids is None:
        return target
    head = target.embedding if target.head is None else target.head
    return EmbeddingAndHead(target.embedding, head[draft_ids])
