"""The computations of a draft method, and how much room they have."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, DTypeLike

from blockdraft_drafter.compiled.packing import PackedBlocks, PackedRows
from blockdraft_drafter.config.dflash import DFlashConfig
from blockdraft_drafter.config.eagle3 import Eagle3Config
from blockdraft_drafter.context import buffer
from blockdraft_drafter.context.sharding import HeadSharding
from blockdraft_drafter.method import MethodSpec
from blockdraft_models.decoder.config import DecoderConfig


class Drafted(NamedTuple):
    """What blocks became; a pytree.

    Attributes:
        token_ids: Int[Array, "blocks block_size-1"], the drafted tokens, as the target's ids.
        log_probs: Float[Array, "blocks block_size-1"], natural logarithm of their probabilities.
    """

    token_ids: Array
    log_probs: Array


@dataclass(frozen=True, slots=True)
class Room:
    """How much a method holds, and what it takes.

    Attributes:
        max_sequences: Number of context slots.
        max_context_tokens: Most committed positions per slot.
        max_feature_rows: Most feature rows per sequence and step.
        feature_dtype: Element type of the features to come.
    """

    max_sequences: int
    max_context_tokens: int
    max_feature_rows: int
    feature_dtype: np.dtype[Any]

    def spec(
        self,
        name: str,
        config: DFlashConfig | Eagle3Config,
        fingerprint: str,
        *,
        reads_tokens: bool = False,
    ) -> MethodSpec:
        """Return the fixed facts of a drafter with this room; see `MethodSpec`."""
        return MethodSpec(
            name=name,
            block_size=config.block_size,
            target_layer_ids=config.target_layer_ids,
            feature_width=config.feature_width,
            feature_dtype=self.feature_dtype,
            vocab_size=config.decoder.vocab_size,
            max_sequences=self.max_sequences,
            max_context_tokens=self.max_context_tokens,
            max_feature_rows=self.max_feature_rows,
            fingerprint=fingerprint,
            trained=config.trained,
            reads_tokens=reads_tokens,
        )

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


@runtime_checkable
class DraftSteps(Protocol):
    """The computations of a draft method, as pure functions to be compiled whole.

    `weights` and `context` are pytrees that only the method itself looks into.
    """

    def context(self) -> Any:
        """Return shape, type and place of the context buffer of all slots."""

    def append(self, weights: Any, context: Any, rows: PackedRows) -> Any:
        """Return the buffer with some rows added."""

    def append_and_draft(
        self, weights: Any, context: Any, rows: PackedRows, blocks: PackedBlocks
    ) -> tuple[Any, Drafted]:
        """Return the buffer with some rows added, and drafts that see them."""
