"""How EAGLE-3 is trained: the same objective over drafts made step by step."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.definition import EAGLE3
from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_drafter.files.checkpoint import build, load_drafter, published_arrays, save_drafter
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_training.errors import TrainingError
from blockdraft_training.methods.blocks import SequenceBatch
from blockdraft_training.methods.chains import draft_chains
from blockdraft_training.methods.initialize import eagle3_from_target
from blockdraft_training.settings import TrainSettings

# Each step weighs this much less than the one before (SafeAILab/EAGLE, `traineagle3`).
_STEP_WEIGHT = 0.8


@dataclass(frozen=True, slots=True)
class Eagle3Recipe:
    """The `Recipe` of EAGLE-3."""

    settings: TrainSettings
    title: str = "EAGLE-3"
    idea: str = (
        "Drafts token by token with one layer that starts from the target's hidden states and\n"
        "feeds on its own output (arXiv 2503.01840). Embedding and head are the target's."
    )

    def initial_model(
        self, decoder: Decoder, target: Checkpoint, draft_ids: np.ndarray | None
    ) -> Eagle3:
        """Return the model before the first step, in float32."""
        settings = self.settings
        try:
            config = Eagle3Config.default_for(
                target.config,
                block_size=settings.block_size,
                target_layer_ids=settings.feature_layers,
            )
        except ValueError as error:
            raise TrainingError(str(error)) from error
        config = replace(
            config,
            target_fingerprint=target.fingerprint,
            draft_vocab_size=None if draft_ids is None else len(draft_ids),
            trained=True,
        )
        if settings.init == "target":
            return eagle3_from_target(config, decoder, seed=settings.seed)
        if settings.init == "random":
            return Eagle3(config, dtype=jnp.float32, rngs=nnx.Rngs(settings.seed))
        drafter = load_drafter(
            EAGLE3, Path(settings.init), target, block_size=settings.block_size, dtype=jnp.float32
        )
        if drafter.embedding is not None or drafter.head is not None:
            raise TrainingError(f"{settings.init} has an embedding or a head of its own")
        model = drafter.model
        model.config = replace(
            model.config,
            block_size=settings.block_size,
            target_fingerprint=target.fingerprint,
            draft_vocab_size=config.draft_vocab_size,
            trained=True,
        )
        return model

    def draft(
        self,
        model: Eagle3,
        embedding: Float[Array, "vocab hidden"],
        batch: SequenceBatch,
        anchors: Int[Array, "batch blocks"],
    ) -> Float[Array, "batch blocks slots hidden"]:
        """Return the input of the head for every token drafted after each anchor."""
        return draft_chains(model, embedding, batch, anchors)

    def default_decay(self, block_size: int) -> float:
        """Return the γ that gives the published weights; they do not depend on the block size."""
        return -1 / math.log(_STEP_WEIGHT)

    def save(self, model: Eagle3, directory: Path, draft_ids: np.ndarray | None) -> None:
        """Write the drafter in bfloat16, in the published format."""
        arrays = published_arrays(EAGLE3, model)
        rounded = {name: array.astype(jnp.bfloat16) for name, array in arrays.items()}
        model = build(EAGLE3, model.config, rounded, dtype=jnp.bfloat16)
        save_drafter(EAGLE3, model, directory, draft_ids)
