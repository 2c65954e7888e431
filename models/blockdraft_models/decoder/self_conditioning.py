"""Embeddings of a canvas, conditioned by the choices of the step before (DiffusionGemma)."""

from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.layer import UnscaledNorm, norm
from blockdraft_models.decoder.mlp import GatedMLP
from blockdraft_models.decoder.sharding import EMBED


class CanvasInputs(NamedTuple):
    """The tokens of canvases, among all of a step."""

    joint: Array  # Bool[Array, "tokens"], whether each is one
    # Float[Array, "tokens hidden"], the mean embedding of each by the distribution that the step
    # before gave; zeros in the first step.
    signal: Array


class SelfConditioning(nnx.Module):
    """Adds the signal of each token, through an MLP, to its embedding."""

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize random weights."""
        self.norm = norm(config, config.hidden_size, EMBED, dtype)
        self.mlp = GatedMLP(config.of_layer(0), dtype=dtype, rngs=rngs)
        self.output_norm = UnscaledNorm(config.rms_norm_eps, None)

    def __call__(
        self, x: Float[Array, "tokens hidden"], canvas: CanvasInputs
    ) -> Float[Array, "tokens hidden"]:
        """Return the embeddings, those of canvases conditioned."""
        conditioned = self.output_norm(x + self.mlp(self.norm(canvas.signal)))
        return jnp.where(canvas.joint[:, None], conditioned, x)
