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

from blockdraft_drafter.compiled.definition import Config, DraftModel, MethodDefinition
from blockdraft_drafter.compiled.packing import (
    PackedBlocks,
    PackedFeatures,
    next_power_of_two,
    powers_of_two,
)
from blockdraft_drafter.compiled.steps import DraftSteps, DraftWeights, Room
from blockdraft_drafter.compiled.weight_shapes import (
    abstract_matrices,
    matrix_shapes,
    whole_shapes,
)
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.sampling import SamplingArrays
from blockdraft_models.decoder.sharding import Placement, state_shapes
from blockdraft_models.weights.loading import EmbeddingAndHead

Kind = Literal["append", "draft"]


@dataclass(frozen=True, slots=True)
class DraftPrograms:
    """The compiled shapes of a method.

    A draft over a batch of B blocks (B a power of two) is one program that also appends up to
    B * features_per_block features, all that verification can yield; an append-only program takes a
    power of two of features. That is one program per size of either, not one per pair.

    Attributes:
        steps: The computations.
        weights: Shapes, types and places of their first argument.
        room: For contexts.
        block_size: Tokens per block, the anchor included.
        feature_width: Elements of one feature as it comes.
        placement: On a mesh; None for the default device.
    """

    steps: DraftSteps
    weights: DraftWeights
    room: Room
    block_size: int
    feature_width: int
    placement: Placement | None = None

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
        """Return the programs of a drafter; all arrays may be mere shapes.

        Args:
            steps: The method's.
            model: The drafter.
            matrices: Embedding, and the head over the draft vocabulary.
            draft_ids: The draft vocabulary; None for all tokens.
            room: For contexts.
            context_dtype: Element type of the contexts.
            placement: On a mesh; None for the default device.
        """
        config, decoder = model.config, model.config.decoder
        graph, state = nnx.split(model)
        weights = DraftWeights(
            state_shapes(state, decoder, placement),
            matrix_shapes(matrices, placement),
            whole_shapes(draft_ids, placement),
        )
        return cls(
            steps(graph, decoder, room, context_dtype, placement),
            weights,
            room,
            config.block_size,
            decoder.hidden_size if room.projected else config.feature_width,
            placement,
        )

    @property
    def features_per_block(self) -> int:
        """Features that a draft program appends for each of its blocks."""
        return next_power_of_two(self.block_size)

    @property
    def append_sizes(self) -> list[int]:
        """How many features append-only programs take, rising."""
        most = next_power_of_two(max(self.room.max_feature_rows, self.features_per_block))
        return powers_of_two(self.features_per_block, most)

    @property
    def draft_sizes(self) -> list[int]:
        """The batch sizes of draft programs, rising."""
        return powers_of_two(1, self.room.max_sequences)

    def lower(self, kind: Kind, size: int) -> Lowered:
        """Trace a program; nothing is compiled and no array is made.

        Args:
            kind: "append", or "draft", which appends too.
            size: Features to append, or blocks to draft.
        """
        context = self.steps.context()
        places = None
        if self.placement is not None:
            # Otherwise the next step would get the buffer back in another place.
            places = jax.tree.map(lambda part: part.sharding, context)
        if kind == "append":
            append = jax.jit(self.steps.append, donate_argnums=1, out_shardings=places)
            return append.lower(self.weights, context, self._features(size))
        if places is not None:
            # What was drafted is small: every device has all of it.
            places = (places, self._everywhere)
        draft = jax.jit(self.steps.append_and_draft, donate_argnums=1, out_shardings=places)
        features = self._features(size * self.features_per_block)
        return draft.lower(self.weights, context, features, self._blocks(size))

    def _features(self, count: int) -> PackedFeatures:
        features = self._input((count, self.feature_width), self.room.feature_dtype)
        return PackedFeatures(features, *[self._input((count,), jnp.int32)] * 3)

    def _blocks(self, count: int) -> PackedBlocks:
        # Shapes where the arrays themselves are declared.
        numbers: Any = self._input((count,), jnp.int32)
        shares: Any = self._input((count,), jnp.float32)
        seeds: Any = self._input((count, 2), jnp.uint32)
        sampling = SamplingArrays(shares, numbers, shares, shares, seeds)
        return PackedBlocks(numbers, numbers, numbers, numbers, shares, sampling)

    def _input(self, shape: tuple[int, ...], dtype: DTypeLike) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._everywhere)

    @property
    def _everywhere(self) -> NamedSharding | None:
        if self.placement is None:
            return None
        return NamedSharding(self.placement.mesh, PartitionSpec())


def abstract_programs(
    method: MethodDefinition[Config, Any],
    config: Config,
    target: DecoderConfig,
    room: Room,
    *,
    dtype: DTypeLike,
    placement: Placement | None,
) -> DraftPrograms:
    """Return the programs of a drafter that is not there, from shapes only.

    Args:
        method: The drafter's.
        config: Its shape.
        target: The shape of the target, whose embedding and head it uses.
        room: For contexts.
        dtype: Element type of weights, activations and contexts.
        placement: On a mesh, whose devices may be those of a topology; None for the default device.
    """
    model = nnx.eval_shape(lambda: method.module(config, dtype=dtype, rngs=nnx.Rngs(0)))
    size = config.draft_vocab_size
    tied = target.tie_word_embeddings and not method.own_matrices
    matrices = abstract_matrices(config.decoder, dtype=dtype, tied=tied, draft_vocab_size=size)
    draft_ids = None if size is None else jax.ShapeDtypeStruct((size,), jnp.int32)
    return DraftPrograms.of(
        method.steps, model, matrices, draft_ids, room, context_dtype=dtype, placement=placement
    )
