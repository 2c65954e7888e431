"""The DFlash drafter, exactly as published: one denoising pass over a block of mask tokens.

Draft layers are ordinary Qwen3 layers. What is special: the context's keys and values are
projected from the target's features by the same k_proj and v_proj that the block uses, without
the layer's input norm, and are never updated by the draft layers.

Source: z-lab/dflash, `dflash/model.py` (arXiv 2602.06036).
"""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.markov import MarkovHead
from blockdraft_models.decoder.attention import Attend, LayerCache, rotary_tables, rotate
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.layer import DecoderLayer, Linear, RMSNorm
from blockdraft_models.decoder.sharding import EMBED


class DFlash(DraftModel):
    """The draft model; embedding and head are the target's and are not part of it.

    Knows neither batches nor buffers: tokens are flat, and each layer's attention is passed in,
    so serving and training run the same layers.

    Attributes:
        config: What was built.
        fc: Feature to hidden state.
        hidden_norm: Normalizes projected features.
        layers: The draft layers.
        norm: The final norm, before the target's head.
        markov_head: What each token's logits owe to the token before it; None if nothing.
    """

    config: DFlashConfig

    def __init__(
        self, config: DFlashConfig, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
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
        self.hidden_norm = RMSNorm(hidden, eps, dtype=dtype)
        self.layers = nnx.List(
            [DecoderLayer(decoder, dtype=dtype, rngs=rngs) for _ in range(decoder.num_layers)]
        )
        self.norm = RMSNorm(hidden, eps, dtype=dtype)
        self.markov_head: MarkovHead | None = None
        if config.markov_rank:
            vocab = decoder.vocab_size
            draft_vocab = config.draft_vocab_size or vocab
            head = MarkovHead(vocab, draft_vocab, config.markov_rank, dtype=dtype, rngs=rngs)
            self.markov_head = nnx.data(head)

    def suit(self, platform: str) -> None:
        """Widen the Markov head where products of a single row of bfloat16 are slow."""
        if self.markov_head is not None and platform == "cpu":
            self.markov_head.widen()

    @property
    def projection(self) -> FeatureProjection:
        """Feature to hidden state, normalized."""
        scale, eps = self.hidden_norm.scale[...], self.hidden_norm.eps
        return FeatureProjection(self.fc.weight[...], scale, eps)

    def keys_values(
        self, hidden: Float[Array, "rows hidden"], positions: Int[Array, " rows"]
    ) -> list[
        tuple[Float[Array, "rows kv_heads head_dim"], Float[Array, "rows kv_heads head_dim"]]
    ]:
        """Return every layer's keys and values of context positions.

        Args:
            hidden: Their projected features.
            positions: Position of each row in its sequence.

        Returns:
            For each layer the keys, normalized and rotated, and the values.
        """
        decoder = self.config.decoder
        shape = (hidden.shape[0], decoder.num_kv_heads, decoder.head_dim)
        rotary = rotary_tables(decoder, positions)
        projected = []
        for layer in self.layers:
            attention = layer.attention
            keys = attention.key(hidden).reshape(shape)
            if attention.key_norm is not None:
                keys = attention.key_norm(keys)
            projected.append((rotate(keys, *rotary), attention.value(hidden).reshape(shape)))
        return projected

    def draft(
        self,
        embedded: Float[Array, "tokens hidden"],
        positions: Int[Array, " tokens"],
        caches: Sequence[LayerCache],
        attends: Sequence[Attend[LayerCache]],
    ) -> Float[Array, "tokens hidden"]:
        """Denoise blocks of an anchor followed by mask tokens.

        Args:
            embedded: The target's embedding of every block token, blocks side by side.
            positions: Position of each token in its sequence.
            caches: Each layer's context, opaque here.
            attends: Each layer's attention over the context and the blocks themselves.

        Returns:
            Normalized hidden states: the target's head turns the one at a position into the
            logits of the token at that same position.
        """
        rotary = rotary_tables(self.config.decoder, positions)
        x = embedded
        for layer, cache, attend in zip(self.layers, caches, attends, strict=True):
            x, _ = layer(x, rotary, cache, attend)
        return self.norm(x)
