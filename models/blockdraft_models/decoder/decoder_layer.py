"""One layer of a decoder: attention and an MLP, or the experts that a router chooses."""

import jax
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.decoder.attention import EVERYTHING, Attend, LayerCache, Reach
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.experts import Experts
from blockdraft_models.decoder.layer import LAYER_SCOPE, AttentionProjections, GatedMLP, norm
from blockdraft_models.decoder.rope import Rotary
from blockdraft_models.decoder.sharding import EMBED


class DecoderLayer(nnx.Module):
    """A pre-norm layer: attention and MLP, each added to the residual stream.

    `attention_output_norm` and `mlp_output_norm` are None but in Gemma.
    """

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize a random layer."""
        hidden, after = config.hidden_size, config.output_norms
        self.attention_norm = norm(config, hidden, EMBED, dtype)
        self.attention = AttentionProjections(config, dtype=dtype, rngs=rngs)
        self.attention_output_norm = norm(config, hidden, EMBED, dtype) if after else None
        self.mlp_norm = norm(config, hidden, EMBED, dtype)
        kind = Experts if config.num_experts else GatedMLP
        self.mlp: Experts | GatedMLP = kind(config, dtype=dtype, rngs=rngs)
        self.mlp_output_norm = norm(config, hidden, EMBED, dtype) if after else None

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        rotary: Rotary,
        cache: LayerCache,
        attend: Attend[LayerCache],
        reach: Reach = EVERYTHING,
    ) -> tuple[Float[Array, "tokens hidden"], LayerCache]:
        """Return the residual stream after this layer, and its updated cache."""
        with jax.named_scope(LAYER_SCOPE):
            attended, cache = self.attention(self.attention_norm(x), rotary, cache, attend, reach)
            if self.attention_output_norm is not None:
                attended = self.attention_output_norm(attended)
            x = x + attended
            y = self.mlp_norm(x)
            fed = self.mlp(y)
            if self.mlp_output_norm is not None:
                fed = self.mlp_output_norm(fed)
            return x + fed, cache
