"""The shapes of the models a command names; weights are not needed."""

from dataclasses import replace
from pathlib import Path

from blockdraft_aot.errors import AotError
from blockdraft_aot.model_shapes import SHAPES
from blockdraft_drafter.catalogue import published_method
from blockdraft_drafter.config import DraftConfig
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.weights.files import read_json
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_models.weights.resolve import resolve_target

NO_DRAFTER = "none"
# Of the published drafters (z-lab DFlash; EAGLE-3 heads score 32,000 tokens).
PUBLISHED_DRAFT_LAYERS = 5
PUBLISHED_FEATURES = 5
PUBLISHED_EAGLE3_VOCABULARY = 32000


def target_shape(name: str) -> DecoderConfig:
    """Return the shape of a target: a published one by name, or that of a checkpoint.

    Raises:
        ModelError: If there is no such checkpoint, or it is damaged.
    """
    if name in SHAPES:
        return SHAPES[name]
    return load_checkpoint_config(resolve_target(name)).config


def drafter_shape(name: str, target: DecoderConfig, block_size: int) -> DraftConfig | None:
    """Return the shape of a drafter.

    Args:
        name: "dflash" or "eagle3" for the published shape, "none", or a directory with a
            `config.json`.
        target: What it drafts for.
        block_size: Tokens per block, where the drafter does not say.

    Raises:
        AotError: If it is none of these, or does not fit the target.
    """
    try:
        if name == NO_DRAFTER:
            return None
        if name == "dflash":
            return DFlashConfig.default_for(
                target,
                block_size=block_size,
                num_layers=PUBLISHED_DRAFT_LAYERS,
                num_features=PUBLISHED_FEATURES,
            )
        if name == "eagle3":
            drafter = Eagle3Config.default_for(target, block_size=block_size)
            size = min(PUBLISHED_EAGLE3_VOCABULARY, target.vocab_size)
            return replace(drafter, draft_vocab_size=size)
        if not Path(name).is_dir():
            raise AotError(f"--drafter is no directory, nor dflash, eagle3 or none: {name!r}")
        published = read_json(Path(name) / "config.json", required=True)
        method = published_method(published)
        shape: DraftConfig = method.config_from_hf(published, target, block_size)
        return shape
    except (TypeError, ValueError) as error:
        raise AotError(f"drafter {name}: {error}") from error
