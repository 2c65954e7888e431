"""The shape of a target decoder.

A *config* is always the shape of a model, here and in the drafter; what a process is told by its
user are *settings*.
"""

import json
import math
from dataclasses import asdict, dataclass

# What does not change the function computed by the weights stays out of fingerprints: the same
# weights are published under several names, context limits and stop tokens.
_NOT_ARCHITECTURE = ("name", "max_position_embeddings", "bos_token_id", "eos_token_ids")

# Several times what any published decoder has, and few enough to be listed one by one.
_MOST_LAYERS = 1024
_LARGEST_SIZE = 2**31 - 1
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_layers"),
    *("num_heads", "num_kv_heads", "head_dim", "max_position_embeddings"),
)


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretching of the low rotary frequencies ("llama3" in `rope_scaling`)."""

    factor: float  # by how much the lowest frequencies are slowed
    # Wavelengths above `original_max_position_embeddings / low_freq_factor` are slowed by the whole
    # `factor`.
    low_freq_factor: float
    # Wavelengths below `original_max_position_embeddings / high_freq_factor` are left alone; those
    # between are interpolated.
    high_freq_factor: float
    original_max_position_embeddings: int  # context length before stretching, in tokens

    def __post_init__(self) -> None:
        """Refuse values for which the interpolation is undefined."""
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"rope scaling factor must be at least 1, got {self.factor}")
        if not 0 < self.low_freq_factor < self.high_freq_factor < math.inf:
            raise ValueError(
                "rope scaling needs 0 < low_freq_factor < high_freq_factor, got "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )
        if self.original_max_position_embeddings < 1:
            raise ValueError("rope scaling original_max_position_embeddings must be positive")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Llama-style decoder: what the module tree and its forward pass depend on."""

    name: str  # display name; takes no part in comparing checkpoints
    vocab_size: int  # rows of the embedding, padding included
    hidden_size: int  # width of the residual stream
    intermediate_size: int  # width of the gated MLP
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool  # whether the head is the transposed embedding
    attention_bias: bool  # whether the four attention projections have biases
    qk_norm: bool  # whether queries and keys are RMS-normalized per head before RoPE (Qwen3)
    max_position_embeddings: int  # longest supported context, in tokens
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse shapes no decoder can have."""
        for field in _SIZES:
            size = getattr(self, field)
            if size < 1:
                raise ValueError(f"{field} must be positive, got {size}")
            most = _MOST_LAYERS if field == "num_layers" else _LARGEST_SIZE
            if size > most:
                raise ValueError(f"{field} must be at most {most}, got {size}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) is not a multiple of num_kv_heads "
                f"({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary embedding, got {self.head_dim}")
        if not (0 < self.rms_norm_eps < math.inf and 0 < self.rope_theta < math.inf):
            raise ValueError("rms_norm_eps and rope_theta must be positive and finite")
        special = self.eos_token_ids + (() if self.bos_token_id is None else (self.bos_token_id,))
        for token in special:
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"token id {token} is outside the vocabulary of {self.vocab_size}")

    def canonical_json(self) -> str:
        """Describe the computed function, for fingerprints: JSON with sorted keys, no spaces."""
        fields = {k: v for k, v in asdict(self).items() if k not in _NOT_ARCHITECTURE}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))
