"""EAGLE-3 behind the draft-method interface."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_drafter import eagle3_step
from blockdraft_drafter.compiled_method import CompiledMethod, Drafted, Room
from blockdraft_drafter.eagle3_checkpoint import Eagle3Drafter
from blockdraft_drafter.eagle3_step import Eagle3Context
from blockdraft_drafter.packing import PackedBlocks, PackedRows
from blockdraft_drafter.vocabulary import narrowed
from blockdraft_models.config import DecoderConfig
from blockdraft_models.loading import EmbeddingAndHead

NAME = "eagle3"


@dataclass(frozen=True, slots=True)
class Eagle3Steps:
    """The `DraftSteps` of EAGLE-3; weights are the drafter's, the target's and the vocabulary.

    Attributes:
        graph: The drafter without its weights.
        decoder: Its draft layer.
        room: For contexts.
        dtype: Of the contexts.
    """

    graph: nnx.GraphDef[Any]
    decoder: DecoderConfig
    room: Room
    dtype: DTypeLike

    def allocate(self) -> Eagle3Context:
        """Return the empty context buffer of all slots."""
        [layer] = self.room.allocate(self.decoder, self.dtype)
        latest = jnp.zeros((self.room.max_sequences, self.decoder.hidden_size), self.dtype)
        return Eagle3Context(layer, latest)

    def append(self, weights: Any, context: Eagle3Context, rows: PackedRows) -> Eagle3Context:
        """Return the buffer with some rows added."""
        state, target, _ = weights
        model = nnx.merge(self.graph, state)
        return eagle3_step.append(model, target.embedding, context, rows)

    def append_and_draft(
        self, weights: Any, context: Eagle3Context, rows: PackedRows, blocks: PackedBlocks
    ) -> tuple[Eagle3Context, Drafted]:
        """Return the buffer with some rows added, and drafts that see them."""
        state, target, draft_ids = weights
        model = nnx.merge(self.graph, state)
        return eagle3_step.append_and_draft(model, target, draft_ids, context, rows, blocks)


class Eagle3Method(CompiledMethod):
    """A loaded EAGLE-3 drafter with room for contexts."""

    def __init__(
        self,
        drafter: Eagle3Drafter,
        target: EmbeddingAndHead,
        room: Room,
        on_recompilation: Callable[[], None] = lambda: None,
    ) -> None:
        """Allocate the context buffer; nothing is compiled yet.

        Args:
            drafter: The draft model and its identity.
            target: The target's embedding and head, in the draft model's element type.
            room: For contexts.
            on_recompilation: Called when a step meets a shape that warm-up did not compile.
        """
        config, dtype = drafter.model.config, target.embedding.dtype
        graph, state = nnx.split(drafter.model)
        draft_ids = None if drafter.draft_ids is None else jnp.asarray(drafter.draft_ids)
        super().__init__(
            room.spec(NAME, config, drafter.fingerprint, reads_tokens=True),
            Eagle3Steps(graph, config.decoder, room, dtype),
            (state, _matrices(drafter, target), draft_ids),
            on_recompilation=on_recompilation,
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
