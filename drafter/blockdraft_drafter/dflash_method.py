"""DFlash behind the draft-method interface."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_drafter import buffer, dflash_step
from blockdraft_drafter.buffer import LayerContext
from blockdraft_drafter.checkpoint import Drafter
from blockdraft_drafter.compiled_method import CompiledMethod, Drafted
from blockdraft_drafter.method import MethodSpec
from blockdraft_drafter.packing import PackedBlocks, PackedRows
from blockdraft_drafter.vocabulary import narrowed
from blockdraft_models.config import DecoderConfig
from blockdraft_models.loading import EmbeddingAndHead

NAME = "dflash"


@dataclass(frozen=True, slots=True)
class DFlashSteps:
    """The `DraftSteps` of DFlash; weights are the drafter's state and the target's two matrices.

    Attributes:
        graph: The drafter without its weights.
        decoder: Its draft layers.
        max_sequences: Context slots.
        max_context_tokens: Positions per slot.
        dtype: Of the contexts.
    """

    graph: nnx.GraphDef[Any]
    decoder: DecoderConfig
    max_sequences: int
    max_context_tokens: int
    dtype: DTypeLike

    def allocate(self) -> list[LayerContext]:
        """Return the empty context buffer of all slots."""
        return buffer.allocate(
            self.decoder,
            slots=self.max_sequences,
            capacity=self.max_context_tokens,
            dtype=self.dtype,
        )

    def append(
        self, weights: Any, context: list[LayerContext], rows: PackedRows
    ) -> list[LayerContext]:
        """Return the buffer with some rows added."""
        state, _ = weights
        return dflash_step.append(nnx.merge(self.graph, state), context, rows)

    def append_and_draft(
        self, weights: Any, context: list[LayerContext], rows: PackedRows, blocks: PackedBlocks
    ) -> tuple[list[LayerContext], Drafted]:
        """Return the buffer with some rows added, and drafts that see them."""
        state, target = weights
        model = nnx.merge(self.graph, state)
        return dflash_step.append_and_draft(model, target, context, rows, blocks)


class DFlashMethod(CompiledMethod):
    """A loaded DFlash drafter with room for contexts."""

    def __init__(
        self,
        drafter: Drafter,
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
        )
        graph, state = nnx.split(drafter.model)
        steps = DFlashSteps(
            graph, config.decoder, max_sequences, max_context_tokens, target.embedding.dtype
        )
        super().__init__(
            spec,
            steps,
            (state, narrowed(target, drafter.draft_ids)),
            # The head scores the draft vocabulary only.
            draft_ids=drafter.draft_ids,
            on_recompilation=on_recompilation,
        )
