"""Shapes of the models a command names: published ones, or those of a checkpoint, without weights.

A step is compiled and its cost modelled from these alone.
"""

from dataclasses import replace
from pathlib import Path

from blockdraft_aot.errors import AotError
from blockdraft_drafter.catalogue import published_method
from blockdraft_drafter.config import DraftConfig
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_models.decoder.config import DecoderConfig, RopeScaling
from blockdraft_models.weights.files import read_json
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_models.weights.resolve import resolve_target

NO_DRAFTER = "none"
# Of the published drafters (z-lab DFlash; EAGLE-3 heads score 32,000 tokens).
PUBLISHED_DRAFT_LAYERS = 5
PUBLISHED_FEATURES = 5
PUBLISHED_EAGLE3_VOCABULARY = 32000

_LLAMA_3_1_8B = DecoderConfig(
    name="llama-3.1-8b",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
    tie_word_embeddings=False,
    attention_bias=False,
    qk_norm=False,
    max_position_embeddings=131072,
    bos_token_id=128000,
    eos_token_ids=(128001, 128008, 128009),
)
_LLAMA_3_2_1B = replace(
    _LLAMA_3_1_8B,
    name="llama-3.2-1b",
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=16,
    head_dim=64,
    rope_scaling=RopeScaling(32.0, 1.0, 4.0, 8192),
    tie_word_embeddings=True,
)
_QWEN3_4B = DecoderConfig(
    name="qwen3-4b",
    vocab_size=151936,
    hidden_size=2560,
    intermediate_size=9728,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope_theta=1000000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    attention_bias=False,
    qk_norm=True,
    max_position_embeddings=40960,
    bos_token_id=None,
    eos_token_ids=(151645, 151643),
)
_QWEN3_8B = replace(
    _QWEN3_4B,
    name="qwen3-8b",
    hidden_size=4096,
    intermediate_size=12288,
    tie_word_embeddings=False,
)

SHAPES = {
    shape.name: shape
    for shape in (
        _LLAMA_3_2_1B,
        replace(
            _LLAMA_3_2_1B,
            name="llama-3.2-3b",
            hidden_size=3072,
            num_layers=28,
            num_heads=24,
            head_dim=128,
        ),
        _LLAMA_3_1_8B,
        replace(
            _QWEN3_4B,
            name="qwen3-0.6b",
            hidden_size=1024,
            intermediate_size=3072,
            num_layers=28,
            num_heads=16,
        ),
        replace(
            _QWEN3_4B,
            name="qwen3-1.7b",
            hidden_size=2048,
            intermediate_size=6144,
            num_layers=28,
            num_heads=16,
        ),
        _QWEN3_4B,
        _QWEN3_8B,
        replace(
            _QWEN3_8B,
            name="qwen3-14b",
            hidden_size=5120,
            intermediate_size=17408,
            num_layers=40,
            num_heads=40,
        ),
        replace(
            _QWEN3_8B,
            name="qwen3-32b",
            hidden_size=5120,
            intermediate_size=25600,
            num_layers=64,
            num_heads=64,
        ),
    )
}


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
