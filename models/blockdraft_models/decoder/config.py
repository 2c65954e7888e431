"""The shape of a target decoder.

A *config* is always the shape of a model, here and in the drafter; what a process is told by its
user are *settings*.
"""

import json
import math
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from blockdraft_models.decoder.rope_scaling import (
    AnyRopeScaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)
from blockdraft_models.diffusion import Diffusion, MaskDiffusion

# Fields that do not change the computed function stay out of fingerprints: the same weights are
# published under several names, context limits and stop tokens.
_NOT_ARCHITECTURE = ("name", "family", "max_position_embeddings", "bos_token_id", "eos_token_ids")

# Several times what any published decoder has, and few enough to be listed one by one.
_MOST_LAYERS = _MOST_EXPERTS = 1024
_LARGEST_SIZE = 2**31 - 1
# So many positions before a chunk are kept for its convolution.
_MOST_TAPS = 8
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_layers"),
    *("num_heads", "num_kv_heads", "head_dim", "max_position_embeddings"),
)


Activation = Literal["silu", "gelu_tanh", "clamped"]
"""The non-linearity of a gated MLP; `clamped` is that of gpt-oss."""


class LayerForm(NamedTuple):
    """The form of a layer, among those of its decoder."""

    is_global: bool  # whether it has the heads of layers without a window, if those are others
    own_kv: bool  # whether it has keys and values
    recurrent: bool = False  # whether it has a state instead of attention
    dense: bool = False  # whether it has an MLP where others have experts


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """The sizes of a gated delta rule; a few value heads share each key head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int  # positions that the convolution before it sees, the newest included

    def __post_init__(self) -> None:
        """Refuse sizes that no layer can have."""
        sizes = asdict(self)
        if min(sizes.values()) < 1 or self.value_heads % self.key_heads or self.taps > _MOST_TAPS:
            raise ValueError(f"a delta rule of {sizes} is not supported")


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """The sizes of latent attention; see `latent_attention`."""

    query_rank: int  # width of the vector that queries come from; 0 if it is the layer's input
    rank: int  # width of the vector that keys and values come from
    plain_dim: int  # elements of each head's query and key that are not rotated
    rotary_dim: int  # those that are
    value_dim: int  # elements of each head's value
    interleaved: bool = True  # whether neighbours are rotated against each other, as stored

    def __post_init__(self) -> None:
        """Refuse sizes that no layer can have."""
        sizes = self.rank, self.plain_dim, self.rotary_dim, self.value_dim
        if min(sizes) < 1 or max(*sizes, self.query_rank) > _LARGEST_SIZE or self.query_rank < 0:
            raise ValueError(f"latent attention of {asdict(self)} is not supported")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The shape of a decoder: its modules and its forward pass depend on nothing else.

    Defaults are those of Llama; a family may set other values (`families`).
    """

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
    rope_scaling: AnyRopeScaling | None
    tie_word_embeddings: bool  # whether the head is the transposed embedding
    attention_bias: bool  # whether the attention projections have biases
    qk_norm: bool  # whether queries and keys are RMS-normalized before RoPE (Qwen3)
    max_position_embeddings: int  # longest supported context, in tokens
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    family: str = "llama"  # the form of configuration and weights; see `families`
    output_bias: bool = True  # whether attention's output has a bias where the others have one
    attention_sinks: bool = False  # whether each head has a score of attending to nothing
    # Sliding window of each layer, as in `Reach.window`, 0 for none; empty if no layer has one.
    windows: tuple[int, ...] = ()
    local_rope_theta: float | None = None  # of layers with a window; None if it is `rope_theta`
    rotary_dim: int | None = None  # elements of a head that are rotated; None for all
    rotated: tuple[bool, ...] = ()  # whether each layer rotates heads; empty if all do
    query_scale: float = 1.0  # factor of queries, beside `head_dim ** -0.5`
    norm_offset: float = 0.0  # added to the scales of norms, which then act in float32 (Gemma)
    wide_norms: bool = False  # whether norms are rounded only after they are scaled (OLMo)
    whole_qk_norm: bool = False  # whether `qk_norm` is over all heads together (OLMo)
    input_norms: bool = True  # whether attention and MLP have a norm before them (not in OLMo)
    output_norms: bool = False  # whether they have one behind them (Gemma, OLMo)
    embedding_scale: float = 1.0  # factor of embeddings
    residual_scale: float = 1.0  # factor of what attention and MLP add (Granite)
    logit_divisor: float = 1.0  # (Granite)
    activation: Activation = "silu"
    mlp_bias: bool = False  # whether the MLP's projections, and the router, have biases
    logit_cap: float | None = None  # logits are `cap * tanh(logits / cap)`; None for no cap
    # Sizes of layers without a window, where those with one have others (Gemma 4).
    global_head_dim: int | None = None
    global_kv_heads: int | None = None
    # Whether the values of layers without a window are their keys before norm and rotation.
    values_are_keys: bool = False
    value_norm: bool = False  # whether values are normalized, without a scale
    output_scales: bool = False  # whether the output of each layer has a factor of its own
    # Width of a further embedding that each layer has of each token; 0 for none (Gemma 4).
    layer_embedding_size: int = 0
    # Last layers, which attend to keys and values of a layer before them and have none (Gemma 4).
    shared_kv_layers: int = 0
    double_mlp: bool = False  # whether the MLPs of those layers are twice as wide
    own_kv: bool = True  # of one layer: whether it is none of those; see `of_layer`
    is_global: bool = False  # of one layer: whether its heads are those of `global_head_dim`
    num_experts: int = 0  # MLPs in each layer that a router chooses from; 0 if there is one
    experts_per_token: int = 0
    normalized_routing: bool = True  # whether the weights of a token's experts add up to one
    shared_expert_size: int = 0  # inner width of an MLP beside the experts; 0 for none (Qwen3-Next)
    parallel_expert_size: int = 0  # inner width of experts beside the MLP; 0 for none (Gemma 4)
    output_gate: bool = False  # whether attention's output is gated by its input (Qwen3-Next)
    delta: DeltaSizes | None = None  # of layers with a state
    # Of latent attention: its one key head has the width of vector and rotated elements together.
    latent: LatentSizes | None = None
    dense_layers: int = 0  # first layers, which have an MLP where the others have experts
    dense_size: int = 0  # inner width of that MLP
    # Whether a token's experts are chosen and weighted by sigmoids of scores (DeepSeek), of which
    # those of the best groups of experts count.
    sigmoid_routing: bool = False
    routing_groups: int = 1
    best_groups: int = 1
    routing_scale: float = 1.0  # factor of the experts' weights
    shared_expert_gate: bool = True  # whether a token decides how much of the shared MLP it takes
    recurrent: tuple[bool, ...] = ()  # whether each layer has one; empty if none has
    diffusion: Diffusion | None = None  # None for a target that chooses token after token

    def __post_init__(self) -> None:
        """Refuse shapes no decoder can have."""
        for field in _SIZES:
            size = getattr(self, field)
            if size < 1:
                raise ValueError(f"{field} must be positive, got {size}")
            maximum = _MOST_LAYERS if field == "num_layers" else _LARGEST_SIZE
            if size > maximum:
                raise ValueError(f"{field} must be at most {maximum}, got {size}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) is not a multiple of num_kv_heads "
                f"({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary embedding, got {self.head_dim}")
        if not (0 < self.rms_norm_eps < math.inf and 0 < self.rope_theta < math.inf):
            raise ValueError("rms_norm_eps and rope_theta must be positive and finite")
        if self.windows and (len(self.windows) != self.num_layers or min(self.windows) < 0):
            raise ValueError(f"windows of {len(self.windows)} layers, of {self.num_layers}")
        if self.rotated and len(self.rotated) != self.num_layers:
            raise ValueError(f"rotations of {len(self.rotated)} layers, of {self.num_layers}")
        if self.recurrent and len(self.recurrent) != self.num_layers:
            raise ValueError(f"states of {len(self.recurrent)} layers, of {self.num_layers}")
        if any(self.recurrent) and (self.delta is None or self.windows):
            raise ValueError("layers with a state beside some with a window are not supported")
        if len({*self.windows, 0}) > 2:
            raise ValueError("sliding windows of several sizes are not supported")
        with_keys = {self.window(layer) for layer in range(min(self.kv_layers, self.num_layers))}
        if with_keys != {self.window(layer) for layer in range(self.num_layers)}:
            raise ValueError("layers share the keys and values of none before them")
        if self.shared_kv_layers and self.global_head_dim is None:
            raise ValueError("shared keys of heads of one width are not supported")
        rotated = self.head_dim if self.rotary_dim is None else self.rotary_dim
        if not 0 < rotated <= self.head_dim or rotated % 2:
            raise ValueError(f"{rotated} of {self.head_dim} elements cannot be rotated")
        if isinstance(self.rope_scaling, LongRopeScaling):
            self.rope_scaling.check(rotated // 2)
        if self.rope_theta <= 1 and isinstance(self.rope_scaling, YarnScaling):
            raise ValueError("rope scaling by YaRN needs a rope_theta above 1")
        latent, groups, dense = self.latent, self.routing_groups, self.dense_layers
        if latent is not None:
            sizes = 1, latent.rank + latent.rotary_dim, latent.rotary_dim
            if (self.num_kv_heads, self.head_dim, self.rotary_dim) != sizes or self.windows:
                raise ValueError(f"latent attention with heads of {self.head_dim} is not supported")
        if not 0 <= dense <= self.num_layers or (dense > 0 and self.dense_size < 1):
            raise ValueError(f"{dense} dense layers of {self.num_layers}, {self.dense_size} wide")
        if (
            self.num_experts
            and groups != 1
            and not (
                0 < self.best_groups <= groups
                and self.num_experts % groups == 0
                and self.num_experts >= 2 * groups
                and self.best_groups * self.num_experts // groups >= self.experts_per_token
            )
        ):
            chosen = f"{self.experts_per_token} experts, of {self.best_groups} groups"
            raise ValueError(f"{chosen} of {groups}, of {self.num_experts}, cannot be chosen")
        if not 0 <= self.num_experts <= _MOST_EXPERTS:
            raise ValueError(f"num_experts must be at most {_MOST_EXPERTS}, got {self.num_experts}")
        if self.num_experts and not 0 < self.experts_per_token <= self.num_experts:
            raise ValueError(f"{self.experts_per_token} experts of {self.num_experts} per token")
        mask: tuple[int, ...] = ()
        if isinstance(self.diffusion, MaskDiffusion):
            mask = (self.diffusion.mask_token_id,)
        if self.diffusion is not None and (self.recurrent or (mask and self.windows)):
            raise ValueError("canvases beside windows or states are not supported")
        bos = () if self.bos_token_id is None else (self.bos_token_id,)
        special = *self.eos_token_ids, *bos, *mask
        for token in special:
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"token id {token} is outside the vocabulary of {self.vocab_size}")

    def canonical_json(self) -> str:
        """Return the computed function for fingerprints: JSON with sorted keys, no spaces.

        Default values are left out, so that a new field changes no fingerprint.
        """
        values = asdict(self)
        architecture = {
            field.name: values[field.name]
            for field in fields(self)
            if field.name not in _NOT_ARCHITECTURE and values[field.name] != field.default
        }
        return json.dumps(architecture, sort_keys=True, separators=(",", ":"))

    def plain(self, family: str, **changes: Any) -> "DecoderConfig":
        """Return a dense decoder of the same sizes, like Llama but for the changes."""
        defaults = {
            field.name: field.default for field in fields(self) if field.default is not MISSING
        }
        scaling = self.rope_scaling if isinstance(self.rope_scaling, RopeScaling) else None
        heads: dict[str, int] = {}
        if self.latent is not None:
            width = self.latent.plain_dim + self.latent.rotary_dim
            heads = {"head_dim": width, "num_kv_heads": self.num_heads}
        overrides = {
            **heads,
            "family": family,
            "intermediate_size": self.active_size,
            "rope_scaling": scaling,
            "attention_bias": False,
        }
        return replace(self, **{**defaults, **overrides, **changes})

    def shortened(self, layers: int) -> "DecoderConfig":
        """Return a decoder of the first `layers` layers only."""
        names = "windows", "rotated", "recurrent"
        by_layer = {name: getattr(self, name)[:layers] for name in names}
        shared, dense = max(0, layers - self.kv_layers), min(layers, self.dense_layers)
        return replace(
            self, num_layers=layers, shared_kv_layers=shared, dense_layers=dense, **by_layer
        )

    def of_layer(self, layer: int) -> "DecoderConfig":
        """Return the decoder with the sizes of one of its layers."""
        config = self.of_kind(is_global=not self.window(layer))
        if self.recurrent:
            delta = self.delta if self.recurrent[layer] else None
            config = replace(config, delta=delta, recurrent=())
        if layer < self.dense_layers:
            config = replace(config, num_experts=0, routing_groups=1, shared_expert_size=0)
            config = replace(config, intermediate_size=self.dense_size)
        config = replace(config, dense_layers=0)
        if layer < self.kv_layers:
            return config
        inner = self.intermediate_size * (2 if self.double_mlp else 1)
        return replace(config, own_kv=False, intermediate_size=inner)

    def of_kind(self, *, is_global: bool) -> "DecoderConfig":
        """Return the decoder with the sizes of its layers without a window, or with one."""
        if self.global_head_dim is None:
            return self
        alike = replace(self, global_head_dim=None, global_kv_heads=None, shared_kv_layers=0)
        if not is_global:
            return replace(alike, values_are_keys=False)
        width, kv_heads = self.global_head_dim, self.global_kv_heads or self.num_kv_heads
        # Scores of all layers have the same factor.
        scale = self.query_scale * math.sqrt(width / self.head_dim)
        return replace(
            alike, head_dim=width, num_kv_heads=kv_heads, query_scale=scale, is_global=True
        )

    def form(self, layer: int) -> LayerForm:
        """Return the form of a layer: those of one form have weights of the same shapes."""
        is_global = self.global_head_dim is not None and not self.window(layer)
        own_kv, dense = layer < self.kv_layers, layer < self.dense_layers
        return LayerForm(is_global, own_kv, self.is_recurrent(layer), dense)

    @property
    def active_size(self) -> int:
        """Inner width of an MLP that does as much as the MLP and the experts of a token do."""
        if self.parallel_expert_size:
            return self.intermediate_size + self.parallel_expert_size * self.experts_per_token
        return self.intermediate_size * max(1, self.experts_per_token)

    @property
    def canvas_grain(self) -> int:
        """Number of positions that see each other in any text; 1 if they see what is before."""
        return 1 if self.diffusion is None else self.diffusion.grain

    @property
    def kv_layers(self) -> int:
        """Number of layers that have keys and values, or a state, of their own: the first ones."""
        return self.num_layers - self.shared_kv_layers

    def kv_layer(self, layer: int) -> int:
        """Return the layer whose keys and values a layer attends to: mostly itself."""
        if layer < self.kv_layers:
            return layer
        before = range(self.kv_layers)
        return max(source for source in before if self.window(source) == self.window(layer))

    def cache_number(self, layer: int) -> int:
        """Return the place of a layer's cache: states come behind keys and values."""
        source = self.kv_layer(layer)
        before = sum(self.recurrent[:source])
        if not self.is_recurrent(source):
            return source - before
        return self.num_layers - sum(self.recurrent) + before

    def is_recurrent(self, layer: int) -> bool:
        """Return whether a layer has a state instead of attention."""
        return bool(self.recurrent) and self.recurrent[layer]

    def window(self, layer: int) -> int:
        """Return the sliding window of a layer, 0 for none."""
        return self.windows[layer] if self.windows else 0
