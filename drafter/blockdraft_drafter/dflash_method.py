"""DFlash behind the draft-method interface."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_drafter import dflash_step
from blockdraft_drafter.buffer import LayerContext
from blockdraft_drafter.checkpoint import Drafter
from blockdraft_drafter.compiled_method import CompiledMethod, Drafted, Room
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
        room: For contexts.
        dtype: Of the contexts.
    """

    graph: nnx.GraphDef[Any]
    decoder: DecoderConfig
    room: Room
    dtype: DTypeLike

    def allocate(self) -> list[LayerContext]:
        """Return the empty context buffer of all slots."""
        return self.room.allocate(self.decoder, self.dtype)

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
        config = drafter.model.config
        graph, state = nnx.split(drafter.model)
        super().__init__(
            room.spec(NAME, config, drafter.fingerprint),
            DFlashSteps(graph, config.decoder, room, target.embedding.dtype),
            (state, narrowed(target, drafter.draft_ids)),
            # The head scores the draft vocabulary only.
            draft_ids=drafter.draft_ids,
            on_recompilation=on_recompilation,
        )
