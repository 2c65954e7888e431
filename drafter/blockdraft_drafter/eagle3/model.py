"""The EAGLE-3 drafter, as published: one decoder layer that feeds on its own output.

Entry i joins the feature of position i with the token at i + 1 and predicts the token at i + 2.
Where the target has not been yet, the layer's own output stands in for the feature.

Source: SafeAILab/EAGLE, `eagle/model/cnets.py` (arXiv 2503.01840).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_models.decoder.attention import Attend, LayerCache, rotary_tables, rotate
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.layer import (
    LAYER_SCOPE,
    AttentionProjections,
    GatedMLP,
    Linear,
    RMSNorm,
)
from blockdraft_models.decoder.sharding import EMBED


class Eagle3(DraftModel):
    """The draft model; the embedding is the target's, and so is the head unless it has its own.

    Knows neither batches nor buffers: entries are flat and attention is passed in, so serving and
    training run the same layer.

    Attributes:
        config: What was built.
        fc: Feature to hidden state.
        embedding_norm: Normalizes the token's embedding.
        hidden_norm: Normalizes the hidden state beside it.
        attention: Projections of both, side by side.
        mlp_norm: Before the MLP.
        mlp: The MLP.
        norm: The final norm, before the head; the next step takes what is before it.
    """

    config: Eagle3Config

    def __init__(
        self, config: Eagle3Config, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
    ) -> None:
        """Initialize random weights.

        Args:
            config: Architecture.
            dtype: Of weights and activations.
            rngs: Source of randomness, stream `params`.
        """
        decoder = config.decoder
        hidden, eps = decoder.hidden_size, decoder.rms_norm_eps
        self.config = config
        axes = (EMBED, "features")
        self.fc = Linear(config.feature_width, hidden, axes, bias=False, dtype=dtype, rngs=rngs)
        self.embedding_norm = RMSNorm(hidden, eps, dtype=dtype)
        self.hidden_norm = RMSNorm(hidden, eps, dtype=dtype)
        self.attention = AttentionProjections(
            decoder, input_size=2 * hidden, dtype=dtype, rngs=rngs
        )
        self.mlp_norm = RMSNorm(hidden, eps, dtype=dtype)
        self.mlp = GatedMLP(decoder, dtype=dtype, rngs=rngs)
        self.norm = RMSNorm(hidden, eps, dtype=dtype)

    @property
    def projection(self) -> FeatureProjection:
        """Feature to hidden state."""
        return FeatureProjection(self.fc.weight[...])

    def keys_values(
        self,
        embedded: Float[Array, "entries hidden"],
        hidden: Float[Array, "entries hidden"],
        positions: Int[Array, " entries"],
    ) -> tuple[
        Float[Array, "entries kv_heads head_dim"], Float[Array, "entries kv_heads head_dim"]
    ]:
        """Return what later entries see of some entries: rotated keys, and values.

        Args:
            embedded: Embedding of the token after each position.
            hidden: Projected feature of each position.
            positions: Position of each entry in its sequence.
        """
        decoder = self.config.decoder
        shape = (embedded.shape[0], decoder.num_kv_heads, decoder.head_dim)
        joined = self._join(embedded, self.hidden_norm(hidden))
        keys = self.attention.key(joined).reshape(shape)
        rotated = rotate(keys, *rotary_tables(decoder, positions))
        return rotated, self.attention.value(joined).reshape(shape)

    def step(
        self,
        embedded: Float[Array, "entries hidden"],
        hidden: Float[Array, "entries hidden"],
        positions: Int[Array, " entries"],
        cache: LayerCache,
        attend: Attend[LayerCache],
    ) -> tuple[Float[Array, "entries hidden"], LayerCache]:
        """Run the layer.

        Args:
            embedded: Embedding of the token after each position.
            hidden: Projected feature of each position, or the output of the step before.
            positions: Position of each entry in its sequence.
            cache: Earlier entries, opaque here.
            attend: Attention over them and the entry itself.

        Returns:
            Outputs: `norm` makes them inputs of the head. And the cache with these entries.
        """
        normalized = self.hidden_norm(hidden)
        residual = normalized if self.config.norm_before_residual else hidden
        rotary = rotary_tables(self.config.decoder, positions)
        with jax.named_scope(LAYER_SCOPE):
            joined = self._join(embedded, normalized)
            attended, cache = self.attention(joined, rotary, cache, attend)
            x = residual + attended
            return x + self.mlp(self.mlp_norm(x)), cache

    def _join(
        self,
        embedded: Float[Array, "entries hidden"],
        normalized: Float[Array, "entries hidden"],
    ) -> Float[Array, "entries twice"]:
        return jnp.concatenate([self.embedding_norm(embedded), normalized], axis=-1)
