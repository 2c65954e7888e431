"""Experts beside the MLP of a layer, each with norms of its own (Gemma 4)."""

from dataclasses import replace

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.experts import Experts
from blockdraft_models.decoder.layer import norm
from blockdraft_models.decoder.sharding import EMBED


class ParallelExperts(nnx.Module):
    """Experts of the residual stream, which are added to the output of the layer's MLP.

    Norms are before the router and before the experts, and behind the experts and the MLP.
    """

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize random weights."""
        hidden = config.hidden_size
        sizes = replace(config, intermediate_size=config.parallel_expert_size)
        self.router_norm = norm(config, hidden, EMBED, dtype)
        self.norm = norm(config, hidden, EMBED, dtype)
        self.experts = Experts(sizes, dtype=dtype, rngs=rngs)
        self.output_norm = norm(config, hidden, EMBED, dtype)
        self.mlp_output_norm = norm(config, hidden, EMBED, dtype)

    def __call__(
        self, fed: Float[Array, "tokens hidden"], x: Float[Array, "tokens hidden"]
    ) -> Float[Array, "tokens hidden"]:
        """Return `fed`, the output of the MLP, with that of the experts for `x`."""
        routed = self.router_norm(x) * jnp.asarray(x.shape[1] ** -0.5, x.dtype)
        mixed = self.experts(self.norm(x), routed)
        return self.mlp_output_norm(fed) + self.output_norm(mixed)
