"""How EAGLE-3 is trained: the same objective over drafts made step by step."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import EAGLE3, Eagle3
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_training.errors import TrainingError
from blockdraft_training.methods.chains import draft_chains
from blockdraft_training.methods.initialize import eagle3_from_target
from blockdraft_training.methods.recipe import Recipe

# Each step weighs this much less than the one before (SafeAILab/EAGLE, `traineagle3`).
_STEP_WEIGHT = 0.8


@dataclass(frozen=True, slots=True)
class Eagle3Recipe(Recipe[Eagle3Config, Eagle3]):
    """The `Recipe` of EAGLE-3."""

    method: ClassVar = EAGLE3
    idea: ClassVar = (
        "Drafts token by token with one layer that starts from the target's hidden states and\n"
        "feeds on its own output (arXiv 2503.01840). Embedding and head are the target's."
    )

    draft = staticmethod(draft_chains)

    def default_config(self, target: Checkpoint) -> Eagle3Config:
        """Return the shape of a drafter that does not go on from another."""
        try:
            return Eagle3Config.default_for(
                target.config,
                block_size=self.settings.block_size,
                target_layer_ids=self.settings.feature_layers,
            )
        except ValueError as error:
            raise TrainingError(str(error)) from error

    def from_target(self, config: Eagle3Config, decoder: Decoder) -> Eagle3:
        """Return a model that starts from the target's last layer."""
        return eagle3_from_target(config, decoder, seed=self.settings.seed)

    def from_drafter(
        self, config: Eagle3Config, earlier: Drafter[Eagle3], draft_ids: np.ndarray | None
    ) -> Eagle3:
        """Return a model that starts from an earlier drafter, whatever that can propose."""
        if earlier.embedding is not None or earlier.head is not None:
            raise TrainingError(f"{self.settings.init} has an embedding or a head of its own")
        earlier.model.config = config
        return earlier.model

    def default_decay(self, block_size: int) -> float:
        """Return the γ that gives the published weights; they do not depend on the block size."""
        return -1 / math.log(_STEP_WEIGHT)
