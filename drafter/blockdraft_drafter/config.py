"""The shape of a drafter, as far as it does not depend on the draft method."""

from dataclasses import dataclass
from typing import Any

from blockdraft_models.decoder.config import DecoderConfig

DEFAULT_BLOCK_SIZE = 8
MAX_BLOCK_SIZE = 256
"""Tokens per block; published drafters have up to 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """What the forward pass of every drafter depends on.

    Attributes:
        decoder: The draft layers; `hidden_size` and `vocab_size` are the target's.
        block_size: Tokens per block, the anchor included.
        target_layer_ids: Target layers whose outputs, concatenated, are a feature.
        num_target_layers: Decoder layers of the target.
        draft_vocab_size: Tokens the drafter can propose (`vocabulary.py`); None for all.
        target_fingerprint: The target the drafter was trained for, or None if not recorded.
        trained: Whether the weights were trained.
    """

    decoder: DecoderConfig
    block_size: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    draft_vocab_size: int | None = None
    target_fingerprint: str | None = None
    trained: bool = True

    def __post_init__(self) -> None:
        """Refuse shapes no drafter can have."""
        if self.block_size < 2:
            raise ValueError(f"block_size must be at least 2, got {self.block_size}")
        if self.block_size > MAX_BLOCK_SIZE:
            raise ValueError(f"block_size must be at most {MAX_BLOCK_SIZE}, got {self.block_size}")
        most = self.decoder.vocab_size
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size <= most:
            raise ValueError(f"draft_vocab_size {self.draft_vocab_size} is not in [1, {most}]")
        if not self.target_layer_ids:
            raise ValueError("target_layer_ids must not be empty")
        for layer_id in self.target_layer_ids:
            if not 0 <= layer_id < self.num_target_layers:
                raise ValueError(f"target layer {layer_id} is not in [0, {self.num_target_layers})")

    @property
    def feature_width(self) -> int:
        """Elements of one feature."""
        return len(self.target_layer_ids) * self.decoder.hidden_size


def common_to_hf(config: DraftConfig) -> dict[str, Any]:
    """Return what every method publishes alike in `config.json`.

    The fields of the layers are named as in transformers; our own additions live under the extra
    key `blockdraft`.
    """
    decoder = config.decoder
    ours: dict[str, Any] = {"trained": config.trained}
    if config.target_fingerprint is not None:
        ours["target_fingerprint"] = config.target_fingerprint
    return {
        "attention_bias": decoder.attention_bias,
        "blockdraft": ours,
        "head_dim": decoder.head_dim,
        "hidden_act": "silu",
        "hidden_size": decoder.hidden_size,
        "intermediate_size": decoder.intermediate_size,
        "max_position_embeddings": decoder.max_position_embeddings,
        "num_attention_heads": decoder.num_heads,
        "num_hidden_layers": decoder.num_layers,
        "num_key_value_heads": decoder.num_kv_heads,
        "rms_norm_eps": decoder.rms_norm_eps,
        "rope_scaling": decoder.rope_scaling_hf(),
        "rope_theta": decoder.rope_theta,
        "vocab_size": decoder.vocab_size,
    }
