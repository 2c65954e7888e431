"""The programs of a draft method: few shapes, lowered from shapes alone.

What serves and what is only compiled, for a TPU that is not there, are lowered by the same lines.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Lowered
from jaxtyping import DTypeLike

from blockdraft_drafter.compiled.definition import (
    DraftConfig,
    DraftModel,
    MethodDefinition,
)
from blockdraft_drafter.compiled.packing import PackedBlocks, PackedFeatures
from blockdraft_drafter.compiled.steps import DraftSteps, DraftWeights, Room
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.sampling import SamplingArrays
from blockdraft_models.decoder.sharding import MODEL_AXIS, Placement, state_shapes
from blockdraft_models.weights.loading import EmbeddingAndHead

Kind = Literal["append", "draft"]


@dataclass(frozen=True, slots=True)
class DraftPrograms:
    """The compiled shapes of a method.

    A draft over a batch of B blocks (B a power of two) is one program that also appends up to
    B * features_per_block features, all that verification can yield; an append-only program takes a
    power of two of features. That is one program per size of either, not one per pair.

    Attributes:
        weights: Shapes, types and places of the first argument of the steps.
    """

    steps: DraftSteps
    weights: DraftWeights
    config: DraftConfig

    @classmethod
    def of(
        cls,
        steps: type[DraftSteps],
        model: DraftModel,
        matrices: EmbeddingAndHead,
        draft_ids: Any,
        room: Room,
        *,
        context_dtype: DTypeLike,
        placement: Placement | None,
    ) -> "DraftPrograms":
        """Return the programs of a drafter on a mesh or on the default device.

        All arrays may be mere shapes; `matrices` are the embedding and the head over the draft
        vocabulary.
        """
        decoder = model.config.decoder
        graph, state = nnx.split(model)
        computed = steps(graph, decoder, room, context_dtype, placement)
        weights = DraftWeights(
            state_shapes(state, decoder, placement),
            _matrix_shapes(matrices, placement),
            jax.tree.map(lambda ids: computed.whole(ids.shape, ids.dtype), draft_ids),
        )
        return cls(computed, weights, model.config)

    @property
    def features_per_block(self) -> int:
        """Features that a draft program appends for each of its blocks."""
        return next_power_of_two(self.config.block_size)

    @property
    def append_sizes(self) -> list[int]:
        """How many features append-only programs take, rising."""
        most = max(self.steps.room.max_feature_rows, self.features_per_block)
        return _powers_of_two(self.features_per_block, most)

    @property
    def draft_sizes(self) -> list[int]:
        """The batch sizes of draft programs, rising."""
        return _powers_of_two(1, self.steps.room.max_sequences)

    def lower(self, kind: Kind, size: int) -> Lowered:
        """Trace the program that appends `size` features, or drafts `size` blocks.

        Nothing is compiled and no array is made.
        """
        context = self.steps.context()
        places = None
        if self.steps.placement is not None:
            # Otherwise the next step would get the buffer back in another place.
            places = jax.tree.map(lambda part: part.sharding, context)
        if kind == "append":
            append = jax.jit(self.steps.append, donate_argnums=1, out_shardings=places)
            return append.lower(self.weights, context, self._features(size))
        if places is not None:
            # What was drafted is small: every device has all of it.
            places = (places, self.steps.everywhere)
        draft = jax.jit(self.steps.append_and_draft, donate_argnums=1, out_shardings=places)
        features = self._features(size * self.features_per_block)
        return draft.lower(self.weights, context, features, self._blocks(size))

    def _features(self, count: int) -> PackedFeatures:
        room, config = self.steps.room, self.config
        width = config.decoder.hidden_size if room.projected else config.feature_width
        features = self.steps.whole((count, width), room.feature_dtype)
        return PackedFeatures(features, *[self.steps.whole((count,), jnp.int32)] * 3)

    def _blocks(self, count: int) -> PackedBlocks:
        # Shapes where the arrays themselves are declared.
        numbers: Any = self.steps.whole((count,), jnp.int32)
        shares: Any = self.steps.whole((count,), jnp.float32)
        seeds: Any = self.steps.whole((count, 2), jnp.uint32)
        sampling = SamplingArrays(shares, numbers, shares, shares, seeds)
        return PackedBlocks(numbers, numbers, numbers, numbers, shares, sampling)


def abstract_programs(
    method: MethodDefinition[Any],
    config: DraftConfig,
    target: DecoderConfig,
    room: Room,
    *,
    dtype: DTypeLike,
    placement: Placement | None,
) -> DraftPrograms:
    """Return the programs of a drafter that is not there, from shapes only.

    It uses the target's embedding and head; `dtype` is that of weights, activations and contexts.
    The devices of `placement` may be those of a topology.
    """
    model = nnx.eval_shape(lambda: method.module(config, dtype=dtype, rngs=nnx.Rngs(0)))
    size, vocab, hidden = config.draft_vocab_size, target.vocab_size, target.hidden_size
    embedding: Any = jax.ShapeDtypeStruct((vocab, hidden), dtype)
    head: Any = jax.ShapeDtypeStruct((size or vocab, hidden), dtype)
    if target.tie_word_embeddings and not method.own_matrices and size is None:
        head = None
    matrices = EmbeddingAndHead(embedding, head)
    draft_ids = None if size is None else jax.ShapeDtypeStruct((size,), jnp.int32)
    return DraftPrograms.of(
        method.steps, model, matrices, draft_ids, room, context_dtype=dtype, placement=placement
    )


def _matrix_shapes(matrices: EmbeddingAndHead, placement: Placement | None) -> Any:
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


def next_power_of_two(value: int) -> int:
    """Return the smallest power of two that is at least `value` and at least 1."""
    return 1 << max(value - 1, 0).bit_length()


def _powers_of_two(first: int, last: int) -> list[int]:
    """Return `first`, twice that, and so on, up to the first that is at least `last`."""
    powers = [first]
    while powers[-1] < last:
        powers.append(powers[-1] * 2)
    return powers
