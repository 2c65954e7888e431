"""EAGLE-3 behind the draft-method interface."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_drafter import buffer, eagle3_step
from blockdraft_drafter.compiled_method import CompiledMethod, Drafted
from blockdraft_drafter.eagle3_checkpoint import Eagle3Drafter
from blockdraft_drafter.eagle3_step import Eagle3Context
from blockdraft_drafter.method import MethodSpec
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
        max_sequences: Context slots.
        max_context_tokens: Positions per slot.
        dtype: Of the contexts.
    """

    graph: nnx.GraphDef[Any]
    decoder: DecoderConfig
    max_sequences: int
    max_context_tokens: int
    dtype: DTypeLike

    def allocate(self) -> Eagle3Context:
        """Return the empty context buffer of all slots."""
        [layer] = buffer.allocate(
            self.decoder,
            slots=self.max_sequences,
            capacity=self.max_context_tokens,
            dtype=self.dtype,
        )
        latest = jnp.zeros((self.max_sequences, self.decoder.hidden_size), self.dtype)
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
        *,
        max_sequences: int,
        max_context_tokens: int,
        max_feature_rows: int,
        feature_dtype: np.dtype[Any],
        on_recompilation: Callable[[], None] = lambda: None,
    ) -> None:
        """Allocate the context buffer; nothing is compiled yet.

        Args:
            drafter: The draft model and its identity.
            target: The target's embedding and head, in the draft model's element type.
            max_sequences: Number of context slots.
            max_context_tokens: Most committed positions per slot.
            max_feature_rows: Most feature rows per sequence and step.
            feature_dtype: Element type of the features to come.
            on_recompilation: Called when a step meets a shape that warm-up did not compile.
        """
        config = drafter.model.config
        spec = MethodSpec(
            name=NAME,
            block_size=config.block_size,
            target_layer_ids=config.target_layer_ids,
            feature_width=config.feature_width,
            feature_dtype=feature_dtype,
            vocab_size=config.decoder.vocab_size,
            max_sequences=max_sequences,
            max_context_tokens=max_context_tokens,
            max_feature_rows=max_feature_rows,
            fingerprint=drafter.fingerprint,
            trained=config.trained,
            reads_tokens=True,
        )
        graph, state = nnx.split(drafter.model)
        dtype = target.embedding.dtype
        steps = Eagle3Steps(graph, config.decoder, max_sequences, max_context_tokens, dtype)
        own_head = narrowed(target, drafter.draft_ids)
        if drafter.embedding is not None:
            own_head = own_head._replace(
                embedding=jnp.asarray(drafter.embedding, dtype),
                head=own_head.head if own_head.head is not None else target.embedding,
            )
        if drafter.head is not None:
            own_head = own_head._replace(head=jnp.asarray(drafter.head, dtype))
        draft_ids = None if drafter.draft_ids is None else jnp.asarray(drafter.draft_ids)
        super().__init__(
            spec, steps, (state, own_head, draft_ids), on_recompilation=on_recompilation
        )
