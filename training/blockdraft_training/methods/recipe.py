"""What a training run must know of the method whose drafter it trains."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Int

from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_training.methods.blocks import SequenceBatch
from blockdraft_training.settings import TrainSettings

DraftModel = DFlash | Eagle3


@runtime_checkable
class Recipe(Protocol):
    """A draft method, as training sees it."""

    @property
    def title(self) -> str:
        """Its name in prose."""

    @property
    def idea(self) -> str:
        """How it drafts, for the model card."""

    @property
    def settings(self) -> TrainSettings:
        """What the run is told."""

    def initial_model(
        self, decoder: Decoder, target: Checkpoint, draft_ids: np.ndarray | None
    ) -> DraftModel:
        """Return the model before the first step, in float32.

        Args:
            decoder: The target.
            target: Its identity.
            draft_ids: Int[ndarray, "draft"], what the model shall be able to propose; None for
                all.

        Raises:
            TrainingError: If the settings do not fit the target.
            ModelError: If the drafter to start from cannot be loaded.
        """

    def draft(
        self,
        model: Any,
        embedding: Float[Array, "vocab hidden"],
        batch: SequenceBatch,
        anchors: Int[Array, "batch blocks"],
    ) -> Float[Array, "batch blocks slots hidden"]:
        """Return the input of the head for every token drafted after each anchor."""

    def default_decay(self, block_size: int) -> float:
        """Return the published γ of the position weights."""

    def save(self, model: Any, directory: Path, draft_ids: np.ndarray | None) -> None:
        """Write the drafter in bfloat16, in the published format."""
