"""EAGLE-3 behind the draft-method interface."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_drafter.compiled.method import CompiledMethod
from blockdraft_drafter.compiled.packing import PackedBlocks, PackedRows
from blockdraft_drafter.compiled.programs import DraftPrograms
from blockdraft_drafter.compiled.steps import Drafted, Room
from blockdraft_drafter.compiled.vocabulary import narrowed
from blockdraft_drafter.compiled.weight_shapes import (
    abstract_matrices,
    matrix_shapes,
    whole_shapes,
)
from blockdraft_drafter.config.eagle3 import Eagle3Config
from blockdraft_drafter.context.sharding import HeadSharding
from blockdraft_drafter.eagle3 import step
from blockdraft_drafter.eagle3.checkpoint import Eagle3Drafter
from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_drafter.eagle3.step import Eagle3Context
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.dtypes import cache_dtype
from blockdraft_models.decoder.sharding import Placement, state_shapes
from blockdraft_models.weights.loading import EmbeddingAndHead

NAME = "eagle3"


@dataclass(frozen=True, slots=True)
class Eagle3Steps:
    """The `DraftSteps` of EAGLE-3; weights are the drafter's, the target's and the vocabulary.

    Attributes:
        graph: The drafter without its weights.
        decoder: Its draft layer.
        room: For contexts.
        dtype: Of the contexts.
        placement: On a mesh; None for the default device.
    """

    graph: nnx.GraphDef[Any]
    decoder: DecoderConfig
    room: Room
    dtype: DTypeLike
    placement: Placement | None = None

    def context(self) -> Eagle3Context:
        """Return shape, type and place of the context buffer of all slots."""
        [layer] = self.room.context(self.decoder, self.dtype, self._sharding)
        latest = jax.ShapeDtypeStruct(
            (self.room.max_sequences, self.decoder.hidden_size), self.dtype
        )
        return Eagle3Context(layer, whole_shapes(latest, self.placement))

    def append(self, weights: Any, context: Eagle3Context, rows: PackedRows) -> Eagle3Context:
        """Return the buffer with some rows added."""
        state, target, _ = weights
        model = nnx.merge(self.graph, state)
        return step.append(model, target.embedding, context, rows)

    def append_and_draft(
        self, weights: Any, context: Eagle3Context, rows: PackedRows, blocks: PackedBlocks
    ) -> tuple[Eagle3Context, Drafted]:
        """Return the buffer with some rows added, and drafts that see them."""
        state, target, draft_ids = weights
        model = nnx.merge(self.graph, state)
        return step.append_and_draft(
            model, target, draft_ids, context, rows, blocks, self._sharding
        )

    @property
    def _sharding(self) -> HeadSharding | None:
        return None if self.placement is None else HeadSharding.of(self.decoder, self.placement)


class Eagle3Method(CompiledMethod):
    """A loaded EAGLE-3 drafter with room for contexts."""

    def __init__(
        self,
        drafter: Eagle3Drafter,
        target: EmbeddingAndHead,
        room: Room,
        on_recompilation: Callable[[], None] = lambda: None,
        *,
        placement: Placement | None = None,
    ) -> None:
        """Allocate the context buffer; nothing is compiled yet.

        Args:
            drafter: The draft model and its identity.
            target: The target's embedding and head, in the draft model's element type.
            room: For contexts.
            on_recompilation: Called when a step meets a shape that warm-up did not compile.
            placement: On a mesh; None for the default device.
        """
        config = drafter.model.config
        draft_ids = None if drafter.draft_ids is None else jnp.asarray(drafter.draft_ids)
        matrices = _matrices(drafter, target)
        kept = cache_dtype(target.embedding.dtype)
        super().__init__(
            room.spec(NAME, config, drafter.fingerprint, reads_tokens=True),
            _programs(drafter.model, matrices, draft_ids, room, placement, kept),
            (nnx.state(drafter.model), matrices, draft_ids),
            on_recompilation=on_recompilation,
        )


def eagle3_programs(
    config: Eagle3Config, room: Room, *, dtype: DTypeLike, placement: Placement | None
) -> DraftPrograms:
    """Return the programs of a drafter that is not there; see `ahead_of_time.draft_programs`."""
    model = nnx.eval_shape(lambda: Eagle3(config, dtype=dtype, rngs=nnx.Rngs(0)))
    size = config.draft_vocab_size
    matrices = abstract_matrices(config.decoder, dtype=dtype, tied=False, draft_vocab_size=size)
    draft_ids = None if size is None else jax.ShapeDtypeStruct((size,), jnp.int32)
    return _programs(model, matrices, draft_ids, room, placement, dtype)


def _programs(
    model: Eagle3,
    matrices: EmbeddingAndHead,
    draft_ids: Any,
    room: Room,
    placement: Placement | None,
    context_dtype: DTypeLike,
) -> DraftPrograms:
    config, decoder = model.config, model.config.decoder
    graph, state = nnx.split(model)
    return DraftPrograms(
        Eagle3Steps(graph, decoder, room, context_dtype, placement),
        (
            state_shapes(state, decoder, placement),
            matrix_shapes(matrices, placement),
            whole_shapes(draft_ids, placement),
        ),
        room,
        config.block_size,
        config.feature_width,
        placement,
    )


def _matrices(drafter: Eagle3Drafter, target: EmbeddingAndHead) -> EmbeddingAndHead:
    """Return embedding and head: the drafter's own where it has them, else the target's."""
    dtype = target.embedding.dtype
    embedding, head = narrowed(target, drafter.draft_ids)
    if head is None:
        head = embedding  # tied in the target, which says nothing of the drafter's embedding
    if drafter.embedding is not None:
        embedding = jnp.asarray(drafter.embedding, dtype)
    if drafter.head is not None:
        head = jnp.asarray(drafter.head, dtype)
    return EmbeddingAndHead(embedding, head)
