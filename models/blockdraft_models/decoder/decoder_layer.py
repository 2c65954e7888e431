"""One layer of a decoder: attention or a recurrence, and an MLP or experts."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float

from blockdraft_models.decoder.attention import (
    EVERYTHING,
    NO_SIDE_INPUTS,
    Attend,
    LayerCache,
    Reach,
    SideInputs,
)
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.experts import Experts
from blockdraft_models.decoder.gated_delta_net import GatedDeltaNet
from blockdraft_models.decoder.latent_attention import LatentAttention
from blockdraft_models.decoder.layer import LAYER_SCOPE, AttentionProjections, RMSNorm, norm, scaled
from blockdraft_models.decoder.layer_embeddings import SideInput
from blockdraft_models.decoder.linear import parameter
from blockdraft_models.decoder.mlp import GatedMLP, shared_expert
from blockdraft_models.decoder.parallel_experts import ParallelExperts
from blockdraft_models.decoder.rope import Rotary
from blockdraft_models.decoder.sharding import EMBED
from blockdraft_models.diffusion import NoiseDiffusion


class DecoderLayer(nnx.Module):
    """Attention or what is in its place, and MLP, each added to the residual stream.

    Norms that a family does not have, before them or behind them, are None.
    """

    attention: AttentionProjections  # of layers that attend

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize a random layer."""

        def norm_if(there: bool) -> RMSNorm | None:
            return norm(config, config.hidden_size, EMBED, dtype) if there else None

        self.attention_norm = norm_if(config.input_norms)
        recurs = config.delta is not None
        self.recurrence = GatedDeltaNet(config, dtype=dtype, rngs=rngs) if recurs else None
        latent = config.latent is not None
        self.latent_attention = LatentAttention(config, dtype=dtype, rngs=rngs) if latent else None
        if not (recurs or latent):
            self.attention = AttentionProjections(config, dtype=dtype, rngs=rngs)
        self.attention_output_norm = norm_if(config.output_norms)
        self.mlp_norm = norm_if(config.input_norms)
        parallel = config.parallel_expert_size > 0
        kind = Experts if config.num_experts and not parallel else GatedMLP
        self.mlp: Experts | GatedMLP = kind(config, dtype=dtype, rngs=rngs)
        shared = config.shared_expert_size > 0
        self.shared_expert = shared_expert(config, dtype=dtype, rngs=rngs) if shared else None
        self.experts = ParallelExperts(config, dtype=dtype, rngs=rngs) if parallel else None
        self.mlp_output_norm = norm_if(config.output_norms)
        self.residual_scale = config.residual_scale
        size = config.layer_embedding_size
        self.side_input = SideInput(config, dtype=dtype, rngs=rngs) if size else None
        self.output_scale: nnx.Param[Array] | None = None
        if config.output_scales:
            self.output_scale = nnx.data(parameter(jnp.ones(1, dtype), (None,)))
        # That of tokens outside of canvases, if theirs is another.
        self.text_scale: nnx.Param[Array] | None = None
        if isinstance(config.diffusion, NoiseDiffusion):
            self.text_scale = nnx.data(parameter(jnp.ones(1, dtype), (None,)))

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        rotary: Rotary,
        cache: LayerCache,
        attend: Attend[LayerCache],
        reach: Reach = EVERYTHING,
        side: SideInputs = NO_SIDE_INPUTS,
    ) -> tuple[Float[Array, "tokens hidden"], LayerCache]:
        """Return the residual stream after this layer, and its updated cache."""
        with jax.named_scope(LAYER_SCOPE):
            y = _normalized(self.attention_norm, x)
            mixer = self.recurrence or self.latent_attention or self.attention
            attended, cache = mixer(y, rotary, cache, attend, reach, side.kv)
            x = x + scaled(_normalized(self.attention_output_norm, attended), self.residual_scale)
            y = _normalized(self.mlp_norm, x)
            fed = self.mlp(y)
            if self.shared_expert is not None:
                fed = fed + self.shared_expert(y)
            if self.experts is not None:
                fed = self.experts(fed, x)
            x = x + scaled(_normalized(self.mlp_output_norm, fed), self.residual_scale)
            if self.side_input is not None and side.embedded is not None:
                x = x + self.side_input(x, side.embedded)
            return x if self.output_scale is None else x * self._scale(side.joint), cache

    def _scale(self, joint: Bool[Array, " tokens"] | None) -> Float[Array, "tokens_or_1 1"]:
        """Return the factor of the output of each token."""
        assert self.output_scale is not None
        of_canvas: Array = self.output_scale[...][None]
        if self.text_scale is None:
            return of_canvas
        text: Array = self.text_scale[...][None]
        return text if joint is None else jnp.where(joint[:, None], of_canvas, text)


def _normalized(
    norm: RMSNorm | None, x: Float[Array, "tokens hidden"]
) -> Float[Array, "tokens hidden"]:
    return x if norm is None else norm(x)
