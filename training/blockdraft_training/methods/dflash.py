"""How DFlash is trained."""

from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.definition import DFLASH
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.files.checkpoint import build, load_drafter, published_arrays, save_drafter
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_training.errors import TrainingError
from blockdraft_training.methods.blocks import SequenceBatch, draft_blocks
from blockdraft_training.methods.initialize import from_drafter, from_target
from blockdraft_training.methods.objective import default_decay
from blockdraft_training.settings import DFlashSettings


@dataclass(frozen=True, slots=True)
class DFlashRecipe:
    """The `Recipe` of DFlash."""

    settings: DFlashSettings
    title: str = "DFlash"
    idea: str = (
        "Drafts a block of tokens in one pass from the target's hidden states (block diffusion,\n"
        "arXiv 2602.06036)."
    )

    def initial_model(
        self, decoder: Decoder, target: Checkpoint, draft_ids: np.ndarray | None
    ) -> DFlash:
        """Return the model before the first step, in float32."""
        settings = self.settings
        copied = _copied_layers(settings, target.config.num_layers)
        layers = len(copied) or settings.layers
        config = DFlashConfig.default_for(
            target.config, block_size=settings.block_size, num_layers=layers
        )
        config = replace(
            config,
            target_layer_ids=settings.feature_layers or config.target_layer_ids,
            target_fingerprint=target.fingerprint,
            sample_from_anchor=settings.sample_from_anchor,
            draft_vocab_size=None if draft_ids is None else len(draft_ids),
            markov_rank=settings.markov_rank,
            trained=True,
        )
        if settings.init == "target":
            return from_target(config, decoder, copied, seed=settings.seed)
        if settings.init == "random":
            return DFlash(config, dtype=jnp.float32, rngs=nnx.Rngs(settings.seed))
        earlier = load_drafter(DFLASH, Path(settings.init), target, dtype=jnp.float32)
        config = replace(
            earlier.model.config,
            block_size=settings.block_size,
            sample_from_anchor=settings.sample_from_anchor,
            target_fingerprint=target.fingerprint,
            draft_vocab_size=config.draft_vocab_size,
            markov_rank=settings.markov_rank,
            trained=True,
        )
        return from_drafter(config, earlier, draft_ids, seed=settings.seed)

    def draft(
        self,
        model: DFlash,
        embedding: Float[Array, "vocab hidden"],
        batch: SequenceBatch,
        anchors: Int[Array, "batch blocks"],
    ) -> Float[Array, "batch blocks slots hidden"]:
        """Return the input of the head for every token drafted after each anchor."""
        return draft_blocks(model, embedding, batch, anchors)

    def default_decay(self, block_size: int) -> float:
        """Return the published γ of the position weights."""
        return default_decay(block_size)

    def save(self, model: DFlash, directory: Path, draft_ids: np.ndarray | None) -> None:
        """Write the drafter in bfloat16, in the published format."""
        arrays = published_arrays(DFLASH, model)
        rounded = {name: array.astype(jnp.bfloat16) for name, array in arrays.items()}
        model = build(DFLASH, model.config, rounded, dtype=jnp.bfloat16)
        save_drafter(DFLASH, model, directory, draft_ids)


def _copied_layers(settings: DFlashSettings, target_layers: int) -> tuple[int, ...]:
    """Return the target layers to start from, the first and the last ones if none are named."""
    if settings.init != "target":
        return ()
    copied, layers = settings.copied_layers, settings.layers
    if not copied and layers > target_layers:
        raise TrainingError(f"{layers} draft layers cannot copy {target_layers} target layers")
    if not all(0 <= layer < target_layers for layer in copied):
        raise TrainingError(f"copied layers {copied} are not all layers of {target_layers}")
    return copied or (0, *range(target_layers - layers + 1, target_layers))
