"""Further embeddings of tokens, one for each layer, and how a layer takes its own (Gemma 4)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_models.decoder.config import Activation, DecoderConfig
from blockdraft_models.decoder.layer import norm, scaled
from blockdraft_models.decoder.linear import Embedding, Linear
from blockdraft_models.decoder.mlp import activated
from blockdraft_models.decoder.sharding import EMBED


class LayerEmbeddings(nnx.Module):
    """Embeddings for all layers, from one table and from a projection of the first embedding."""

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize a random table and projection."""
        hidden, self.size = config.hidden_size, config.layer_embedding_size
        width = config.num_layers * self.size
        self.embedding = Embedding(config.vocab_size, width, dtype=dtype, rngs=rngs)
        self.projection = Linear(hidden, width, (EMBED, EMBED), bias=False, dtype=dtype, rngs=rngs)
        self.norm = norm(config, self.size, None, dtype)

    def __call__(
        self, token_ids: Int[Array, " tokens"], x: Float[Array, "tokens hidden"]
    ) -> Float[Array, "layers tokens width"]:
        """Return the embeddings of tokens whose scaled first embeddings are `x`."""
        tokens, hidden = x.shape
        table = self.embedding(token_ids).reshape(tokens, -1, self.size)
        projected = scaled(self.projection(x), hidden**-0.5).reshape(table.shape)
        both = self.norm(projected) + table * jnp.asarray(self.size**0.5, table.dtype)
        return scaled(both, 0.5**0.5).swapaxes(0, 1)


class SideInput(nnx.Module):
    """A layer's embedding of each token on its way into the output, which gates it."""

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize random projections."""
        hidden, size = config.hidden_size, config.layer_embedding_size
        self.activation: Activation = config.activation
        self.gate = Linear(hidden, size, (EMBED, EMBED), bias=False, dtype=dtype, rngs=rngs)
        self.projection = Linear(size, hidden, (EMBED, EMBED), bias=False, dtype=dtype, rngs=rngs)
        self.norm = norm(config, hidden, EMBED, dtype)

    def __call__(
        self, x: Float[Array, "tokens hidden"], embedded: Float[Array, "tokens width"]
    ) -> Float[Array, "tokens hidden"]:
        """Return the summand of each token's output."""
        return self.norm(self.projection(activated(self.activation, self.gate(x)) * embedded))
