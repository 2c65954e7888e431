"""DFlash behind the draft-method interface."""

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
from blockdraft_drafter.config.dflash import DFlashConfig
from blockdraft_drafter.context.buffer import LayerContext
from blockdraft_drafter.context.sharding import HeadSharding
from blockdraft_drafter.dflash import step
from blockdraft_drafter.dflash.checkpoint import Drafter
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.dtypes import cache_dtype
from blockdraft_models.decoder.sharding import Placement, state_shapes
from blockdraft_models.weights.loading import EmbeddingAndHead

NAME = "dflash"


@dataclass(frozen=True, slots=True)
class DFlashSteps:
    """The `DraftSteps` of DFlash; weights are the drafter's, the target's and the vocabulary.

    Attributes:
        graph: The drafter without its weights.
        decoder: Its draft layers.
        room: For contexts.
        dtype: Of the contexts.
        sharding: Of the heads; None for one device.
    """

    graph: nnx.GraphDef[Any]
    decoder: DecoderConfig
    room: Room
    dtype: DTypeLike
    sharding: HeadSharding | None = None

    def context(self) -> list[Any]:
        """Return shape, type and place of the context buffer of all slots."""
        return self.room.context(self.decoder, self.dtype, self.sharding)

    def append(
        self, weights: Any, context: list[LayerContext], rows: PackedRows
    ) -> list[LayerContext]:
        """Return the buffer with some rows added."""
        state, _, _ = weights
        return step.append(nnx.merge(self.graph, state), context, rows)

    def append_and_draft(
        self, weights: Any, context: list[LayerContext], rows: PackedRows, blocks: PackedBlocks
    ) -> tuple[list[LayerContext], Drafted]:
        """Return the buffer with some rows added, and drafts that see them."""
        state, target, draft_ids = weights
        model = nnx.merge(self.graph, state)
        return step.append_and_draft(model, target, draft_ids, context, rows, blocks, self.sharding)


class DFlashMethod(CompiledMethod):
    """A loaded DFlash drafter with room for contexts."""

    def __init__(
        self,
        drafter: Drafter,
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
        # The head scores the draft vocabulary only.
        matrices = narrowed(target, drafter.draft_ids)
        draft_ids = None if drafter.draft_ids is None else jnp.asarray(drafter.draft_ids)
        kept = cache_dtype(target.embedding.dtype)
        super().__init__(
            room.spec(NAME, config, drafter.fingerprint),
            _programs(drafter.model, matrices, draft_ids, room, placement, kept),
            (nnx.state(drafter.model), matrices, draft_ids),
            on_recompilation=on_recompilation,
        )


def dflash_programs(
    config: DFlashConfig,
    target: DecoderConfig,
    room: Room,
    *,
    dtype: DTypeLike,
    placement: Placement | None,
) -> DraftPrograms:
    """Return the programs of a drafter that is not there; see `ahead_of_time.draft_programs`."""
    model = nnx.eval_shape(lambda: DFlash(config, dtype=dtype, rngs=nnx.Rngs(0)))
    size = config.draft_vocab_size
    matrices = abstract_matrices(
        config.decoder, dtype=dtype, tied=target.tie_word_embeddings, draft_vocab_size=size
    )
    draft_ids = None if size is None else jax.ShapeDtypeStruct((size,), jnp.int32)
    return _programs(model, matrices, draft_ids, room, placement, dtype)


def _programs(
    model: DFlash,
    matrices: EmbeddingAndHead,
    draft_ids: Any,
    room: Room,
    placement: Placement | None,
    context_dtype: DTypeLike,
) -> DraftPrograms:
    config, decoder = model.config, model.config.decoder
    graph, state = nnx.split(model)
    sharding = None if placement is None else HeadSharding.of(decoder, placement)
    return DraftPrograms(
        DFlashSteps(graph, decoder, room, context_dtype, sharding),
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
