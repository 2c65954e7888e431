"""One decoder layer: attention projections, gated MLP, residuals."""

import jax
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.decoder.attention import Attend, LayerCache
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.modules import Linear, RMSNorm
from blockdraft_models.decoder.rope import rotate
from blockdraft_models.decoder.sharding import EMBED, HEADS, KV_HEADS, MLP

LAYER_SCOPE = "decoder_layer"
"""Under this name profiles and compiled programs show what a layer does."""


class AttentionProjections(nnx.Module):
    """Everything of self-attention but the attending itself, which the caller provides.

    Attributes:
        query: hidden to heads * head_dim.
        key: hidden to kv_heads * head_dim.
        value: hidden to kv_heads * head_dim.
        output: heads * head_dim to hidden.
        query_norm: Per-head RMSNorm (Qwen3) or None.
        key_norm: Per-head RMSNorm (Qwen3) or None.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        input_size: int | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs | None,
    ) -> None:
        """Initialize random projections.

        Args:
            config: The decoder.
            input_size: Width of the input, if it is not `hidden_size`.
            dtype: Of the weights.
            rngs: Source of randomness; None gives zeros.
        """
        self.config = config
        hidden, bias = config.hidden_size, config.attention_bias
        inputs = hidden if input_size is None else input_size
        q_width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim

        def linear(fan_in: int, fan_out: int, axes: tuple[str, str]) -> Linear:
            return Linear(fan_in, fan_out, axes, bias=bias, dtype=dtype, rngs=rngs)

        def head_norm() -> RMSNorm | None:
            if not config.qk_norm:
                return None
            return RMSNorm(config.head_dim, config.rms_norm_eps, axis=None, dtype=dtype)

        self.query = linear(inputs, q_width, (HEADS, EMBED))
        self.key = linear(inputs, kv_width, (KV_HEADS, EMBED))
        self.value = linear(inputs, kv_width, (KV_HEADS, EMBED))
        self.output = linear(q_width, hidden, (EMBED, HEADS))
        self.query_norm = head_norm()
        self.key_norm = head_norm()

    def __call__(
        self,
        x: Float[Array, "tokens inputs"],
        rotary: tuple[Float[Array, "tokens half"], Float[Array, "tokens half"]],
        cache: LayerCache,
        attend: Attend[LayerCache],
    ) -> tuple[Float[Array, "tokens hidden"], LayerCache]:
        """Projects, normalizes, rotates, attends, projects back; returns the updated cache."""
        tokens, head_dim = x.shape[0], self.config.head_dim
        q = self.query(x).reshape(tokens, self.config.num_heads, head_dim)
        k = self.key(x).reshape(tokens, self.config.num_kv_heads, head_dim)
        v = self.value(x).reshape(tokens, self.config.num_kv_heads, head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = rotate(q, *rotary), rotate(k, *rotary)
        attended, cache = attend(q, k, v, cache)
        return self.output(attended.reshape(tokens, -1)), cache


class GatedMLP(nnx.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`.

    Attributes:
        gate: hidden to intermediate.
        up: hidden to intermediate.
        down: intermediate to hidden.
    """

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize random projections."""
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate = Linear(hidden, inner, (MLP, EMBED), bias=False, dtype=dtype, rngs=rngs)
        self.up = Linear(hidden, inner, (MLP, EMBED), bias=False, dtype=dtype, rngs=rngs)
        self.down = Linear(inner, hidden, (EMBED, MLP), bias=False, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "tokens hidden"]) -> Float[Array, "tokens hidden"]:
        """Apply the MLP to each token."""
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nnx.Module):
    """A pre-norm layer: attention and MLP, each added to the residual stream.

    Attributes:
        attention_norm: Before attention.
        attention: The projections.
        mlp_norm: Before the MLP.
        mlp: The MLP.
    """

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize a random layer."""
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.attention = AttentionProjections(config, dtype=dtype, rngs=rngs)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.mlp = GatedMLP(config, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        rotary: tuple[Float[Array, "tokens half"], Float[Array, "tokens half"]],
        cache: LayerCache,
        attend: Attend[LayerCache],
    ) -> tuple[Float[Array, "tokens hidden"], LayerCache]:
        """Return the residual stream after this layer, and its updated cache."""
        with jax.named_scope(LAYER_SCOPE):
            attended, cache = self.attention(self.attention_norm(x), rotary, cache, attend)
            x = x + attended
            return x + self.mlp(self.mlp_norm(x)), cache
