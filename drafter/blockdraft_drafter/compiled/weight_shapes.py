"""Shape, type and place of what a draft method takes from its target, with or without it."""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import DTypeLike

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.sharding import MODEL_AXIS, Placement
from blockdraft_models.weights.loading import EmbeddingAndHead


def matrix_shapes(matrices: EmbeddingAndHead, placement: Placement | None) -> Any:
    """Return the shapes of embedding and head, each divided by its own vocabulary if it can be."""

    def shape(matrix: Any) -> jax.ShapeDtypeStruct:
        if placement is None:
            return jax.ShapeDtypeStruct(matrix.shape, matrix.dtype)
        # A draft vocabulary is not the one that `placement` would divide.
        divided = matrix.shape[0] % placement.mesh.shape[MODEL_AXIS] == 0
        axis = MODEL_AXIS if divided else None
        where = NamedSharding(placement.mesh, PartitionSpec(axis, None))
        return jax.ShapeDtypeStruct(matrix.shape, matrix.dtype, sharding=where)

    return jax.tree.map(shape, matrices)


def whole_shapes(arrays: Any, placement: Placement | None) -> Any:
    """Return the shapes of arrays that lie whole on every device."""
    where = None if placement is None else NamedSharding(placement.mesh, PartitionSpec())
    return jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=where), arrays
    )


def abstract_matrices(
    config: DecoderConfig, *, dtype: DTypeLike, tied: bool, draft_vocab_size: int | None
) -> EmbeddingAndHead:
    """Return embedding and head without their elements.

    Args:
        config: Has the target's `vocab_size` and `hidden_size`.
        dtype: Element type.
        tied: Whether there is no head but the embedding; unless there is a draft vocabulary.
        draft_vocab_size: Rows of the head; None for all.
    """
    embedding: Any = jax.ShapeDtypeStruct((config.vocab_size, config.hidden_size), dtype)
    if tied and draft_vocab_size is None:
        return EmbeddingAndHead(embedding, None)
    rows = draft_vocab_size or config.vocab_size
    head: Any = jax.ShapeDtypeStruct((rows, config.hidden_size), dtype)
    return EmbeddingAndHead(embedding, head)


def placed(weights: Any, shapes: Any) -> Any:
    """Return weights where their shapes say they are to be; those that are there stay."""
    return jax.tree.map(
        lambda weight, shape: (
            weight if shape.sharding is None else jax.device_put(weight, shape.sharding)
        ),
        weights,
        shapes,
    )
