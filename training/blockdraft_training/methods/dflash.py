"""How DFlash is trained."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_training.errors import TrainingError
from blockdraft_training.methods.blocks import draft_blocks
from blockdraft_training.methods.initialize import from_drafter, from_target
from blockdraft_training.methods.recipe import Recipe
from blockdraft_training.settings import DFlashSettings

# γ by block size as published; other sizes take the nearest.
_PUBLISHED_DECAY = {8: 4.0, 10: 5.0, 16: 7.0}


@dataclass(frozen=True, slots=True)
class DFlashRecipe(Recipe[DFlashConfig, DFlash]):
    """The `Recipe` of DFlash."""

    settings: DFlashSettings
    method: ClassVar = DFLASH
    idea: ClassVar = (
        "Drafts a block of tokens in one pass from the target's hidden states (block diffusion,\n"
        "arXiv 2602.06036)."
    )

    draft = staticmethod(draft_blocks)

    def default_config(self, target: Checkpoint) -> DFlashConfig:
        """Return the shape of a drafter that does not go on from another."""
        settings = self.settings
        layers = len(self._copied_layers(target.config.num_layers)) or settings.layers
        config = DFlashConfig.default_for(
            target.config, block_size=settings.block_size, num_layers=layers
        )
        layer_ids = settings.feature_layers or config.target_layer_ids
        return replace(config, target_layer_ids=layer_ids)

    def given_fields(self) -> dict[str, Any]:
        """Return the fields of a configuration that the settings alone decide."""
        return {
            "block_size": self.settings.block_size,
            "sample_from_anchor": self.settings.sample_from_anchor,
            "markov_rank": self.settings.markov_rank,
        }

    def from_target(self, config: DFlashConfig, decoder: Decoder) -> DFlash:
        """Return a model that starts from the target's own layers."""
        copied = self._copied_layers(decoder.config.num_layers)
        return from_target(config, decoder, copied, seed=self.settings.seed)

    def from_drafter(
        self, config: DFlashConfig, earlier: Drafter[DFlash], draft_ids: np.ndarray | None
    ) -> DFlash:
        """Return a model that starts from an earlier drafter."""
        return from_drafter(config, earlier, draft_ids, seed=self.settings.seed)

    def default_decay(self, block_size: int) -> float:
        """Return the published γ of a block size, or of the nearest published one, scaled."""
        nearest = min(_PUBLISHED_DECAY, key=lambda size: abs(size - block_size))
        return _PUBLISHED_DECAY[nearest] * block_size / nearest

    def _copied_layers(self, target_layers: int) -> tuple[int, ...]:
        """Return the target layers to start from, the first and the last ones if none are named."""
        if self.settings.init != "target":
            return ()
        copied, layers = self.settings.copied_layers, self.settings.layers
        if not copied and layers > target_layers:
            raise TrainingError(f"{layers} draft layers cannot copy {target_layers} target layers")
        if not all(0 <= layer < target_layers for layer in copied):
            raise TrainingError(f"copied layers {copied} are not all layers of {target_layers}")
        return copied or (0, *range(target_layers - layers + 1, target_layers))
