"""The computations of a draft method, and how much room they have."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_drafter.compiled.packing import PackedBlocks, PackedFeatures
from blockdraft_drafter.context import buffer
from blockdraft_drafter.context.sharding import HeadSharding
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.sharding import Placement
from blockdraft_models.weights.loading import EmbeddingAndHead


class Drafted(NamedTuple):
    """What blocks became; a pytree.

    Attributes:
        token_ids: Int[Array, "blocks block_size-1"], the drafted tokens, as the target's ids.
        counts: Int[Array, "blocks"], how many of them were drafted; what follows means nothing.
    """

    token_ids: Array
    counts: Array


@dataclass(frozen=True, slots=True)
class Room:
    """How much a method holds, and what it takes.

    Attributes:
        max_sequences: Number of context slots.
        max_context_tokens: Most committed positions per slot.
        max_feature_rows: Most feature rows per sequence and step.
        feature_dtype: Element type of the features to come.
        projected: Whether the target's process projects them.
    """

    max_sequences: int
    max_context_tokens: int
    max_feature_rows: int
    feature_dtype: np.dtype[Any]
    projected: bool

    def context(
        self, decoder: DecoderConfig, dtype: DTypeLike, sharding: HeadSharding | None
    ) -> list[Any]:
        """Return shape, type and place of the context buffer of some draft layers."""
        return buffer.shapes(
            decoder,
            slots=self.max_sequences,
            capacity=self.max_context_tokens,
            dtype=dtype,
            sharding=sharding,
        )


class DraftWeights(NamedTuple):
    """Everything a step reads besides contexts; a pytree of arrays or of their shapes.

    Attributes:
        model: The drafter's state.
        target: Embedding, and the head over the draft vocabulary.
        draft_ids: Int[Array, "draft"], the draft vocabulary; None for all tokens.
    """

    model: Any
    target: EmbeddingAndHead
    draft_ids: Any


@dataclass(frozen=True, slots=True)
class DraftSteps(ABC):
    """The computations of a draft method, as pure functions to be compiled whole.

    The context is a pytree that only the method itself looks into.

    Attributes:
        graph: The drafter without its weights.
        decoder: Its draft layers.
        room: For contexts.
        dtype: Of the contexts.
        placement: On a mesh; None for the default device.
        token_by_token: Whether a step takes the longer, the more tokens are wanted of its blocks.
    """

    graph: nnx.GraphDef[Any]
    decoder: DecoderConfig
    room: Room
    dtype: DTypeLike
    placement: Placement | None = None
    token_by_token: ClassVar[bool] = False

    @property
    def sharding(self) -> HeadSharding | None:
        """The division of the heads; None for one device."""
        return None if self.placement is None else HeadSharding.of(self.decoder, self.placement)

    def layer_contexts(self) -> list[Any]:
        """Return shape, type and place of the keys and values of every draft layer."""
        return self.room.context(self.decoder, self.dtype, self.sharding)

    def hidden_states(
        self, projection: FeatureProjection, new: PackedFeatures
    ) -> Float[Array, "positions hidden"]:
        """Return projected features, in the drafter's element type."""
        features = jnp.asarray(new.features)
        if self.room.projected:
            return features.astype(projection.weight.dtype)
        return projection(features)

    @abstractmethod
    def context(self) -> Any:
        """Return shape, type and place of the context buffer of all slots."""

    @abstractmethod
    def append(self, weights: DraftWeights, context: Any, new: PackedFeatures) -> Any:
        """Return the buffer with new features added."""

    @abstractmethod
    def append_and_draft(
        self, weights: DraftWeights, context: Any, new: PackedFeatures, blocks: PackedBlocks
    ) -> tuple[Any, Drafted]:
        """Return the buffer with new features added, and drafts that see them."""
