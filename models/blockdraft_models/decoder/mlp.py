"""The MLP of a decoder layer, and the one that some families have beside their experts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.decoder.config import Activation, DecoderConfig
from blockdraft_models.decoder.linear import Linear, parameter, random_weights
from blockdraft_models.decoder.products import row_sums
from blockdraft_models.decoder.sharding import EMBED, MLP


# The numbers of the clamped activation are those of gpt-oss, which has no other.
def activated(kind: Activation, gate: Float[Array, "*rows inner"]) -> Float[Array, "*rows inner"]:
    """Return the factor of a gated MLP that comes from its gate."""
    if kind == "silu":
        return jax.nn.silu(gate)
    if kind == "gelu_tanh":
        return jax.nn.gelu(gate, approximate=True)
    gate = jnp.minimum(gate, 7.0)
    return gate * jax.nn.sigmoid(gate * 1.702)


def linear_part(kind: Activation, up: Float[Array, "*rows inner"]) -> Float[Array, "*rows inner"]:
    """Return the factor of a gated MLP that comes from its up projection."""
    return jnp.clip(up, -7.0, 7.0) + 1 if kind == "clamped" else up


class GatedMLP(nnx.Module):
    """SwiGLU, or with another activation: `down(silu(gate(x)) * up(x))`."""

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize random projections."""
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.activation: Activation = config.activation
        self.gate = Linear(hidden, inner, (MLP, EMBED), bias=bias, dtype=dtype, rngs=rngs)
        self.up = Linear(hidden, inner, (MLP, EMBED), bias=bias, dtype=dtype, rngs=rngs)
        self.down = Linear(inner, hidden, (EMBED, MLP), bias=bias, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "tokens hidden"]) -> Float[Array, "tokens hidden"]:
        """Apply the MLP to each token."""
        kind = self.activation
        return self.down(activated(kind, self.gate(x)) * linear_part(kind, self.up(x)))


def shared_expert(
    config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None
) -> "SharedExpert | GatedMLP":
    """Return the random MLP beside the experts of a layer."""
    if config.shared_expert_gate:
        return SharedExpert(config, dtype=dtype, rngs=rngs)
    return GatedMLP(_shared(config), dtype=dtype, rngs=rngs)


def _shared(config: DecoderConfig) -> DecoderConfig:
    return replace(config, intermediate_size=config.shared_expert_size)


class SharedExpert(nnx.Module):
    """An MLP for all tokens, each of which decides how much of it is added (Qwen3-Next).

    `share` is [1 hidden].
    """

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize random weights."""
        hidden = config.hidden_size
        self.mlp = GatedMLP(_shared(config), dtype=dtype, rngs=rngs)
        self.share = parameter(
            random_weights(rngs, (1, hidden), hidden**-0.5, dtype), (None, EMBED)
        )

    def __call__(self, x: Float[Array, "tokens hidden"]) -> Float[Array, "tokens hidden"]:
        """Apply the MLP to each token, and the token's share."""
        scores = row_sums(x.astype(jnp.float32) * self.share[...].astype(jnp.float32))
        return self.mlp(x) * jax.nn.sigmoid(scores).astype(x.dtype)[:, None]
