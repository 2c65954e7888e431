"""Everything of a layer with a state but its recurrence, which the caller provides (Qwen3-Next)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.decoder.attention import (
    EVERYTHING,
    Attend,
    LayerCache,
    Reach,
    Recur,
)
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.delta_rule import DeltaInputs, DeltaWeights
from blockdraft_models.decoder.layer import RMSNorm
from blockdraft_models.decoder.linear import Linear, parameter, random_weights
from blockdraft_models.decoder.rope import Rotary
from blockdraft_models.decoder.sharding import DELTA_HEADS, EMBED


class Taps(nnx.Module):
    """A causal convolution of each channel by itself; `taps` is [channels 1 taps], as stored."""

    def __init__(self, channels: int, taps: int, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize to unit-variance outputs for unit-variance inputs."""
        drawn = random_weights(rngs, (channels, 1, taps), taps**-0.5, dtype)
        self.taps = parameter(drawn, (DELTA_HEADS, None, None))

    def of_heads(self, heads: int) -> Float[Array, "heads width taps"]:
        """Return the taps of each head."""
        return self.taps[...].reshape(heads, -1, self.taps.shape[-1])


class GatedDeltaNet(nnx.Module):
    """Projections, gates and norm around a gated delta rule, in the place of self-attention.

    `log_decay` and `decay_bias` are [value_heads].
    """

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize random weights of a layer whose configuration has the rule's sizes."""
        assert config.delta is not None
        self.sizes = sizes = config.delta
        hidden, heads = config.hidden_size, sizes.value_heads
        key_width, value_width = sizes.key_heads * sizes.key_dim, heads * sizes.value_dim

        def linear(width: int) -> Linear:
            axes = DELTA_HEADS, EMBED
            return Linear(hidden, width, axes, bias=False, dtype=dtype, rngs=rngs)

        self.query, self.key = linear(key_width), linear(key_width)
        self.value, self.gate = linear(value_width), linear(value_width)
        self.decay, self.rate = linear(heads), linear(heads)
        self.query_taps = Taps(key_width, sizes.taps, dtype, rngs)
        self.key_taps = Taps(key_width, sizes.taps, dtype, rngs)
        self.value_taps = Taps(value_width, sizes.taps, dtype, rngs)
        # A state of random weights then lasts for some thirty tokens.
        self.log_decay = parameter(jnp.full(heads, -3.0, dtype), (DELTA_HEADS,))
        self.decay_bias = parameter(jnp.zeros(heads, dtype), (DELTA_HEADS,))
        eps = config.rms_norm_eps
        self.norm = RMSNorm(sizes.value_dim, eps, axis=None, heads=DELTA_HEADS, dtype=dtype)
        axes = EMBED, DELTA_HEADS
        self.output = Linear(value_width, hidden, axes, bias=False, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        rotary: Rotary,
        cache: LayerCache,
        attend: Attend[LayerCache],
        reach: Reach = EVERYTHING,
        kv: tuple[Array, Array] | None = None,
    ) -> tuple[Float[Array, "tokens hidden"], LayerCache]:
        """Projects, recurs, normalizes, gates, projects back; returns the updated cache."""
        if not isinstance(attend, Recur):
            raise ValueError("targets with layers that have a state cannot be computed here")
        sizes, tokens = self.sizes, x.shape[0]
        weights = DeltaWeights(
            self.query_taps.of_heads(sizes.key_heads),
            self.key_taps.of_heads(sizes.key_heads),
            self.value_taps.of_heads(sizes.value_heads),
            self.log_decay[...],
            self.decay_bias[...],
        )
        inputs = DeltaInputs(
            self.query(x).reshape(tokens, sizes.key_heads, -1),
            self.key(x).reshape(tokens, sizes.key_heads, -1),
            self.value(x).reshape(tokens, sizes.value_heads, -1),
            self.decay(x),
            self.rate(x),
        )
        y, cache = attend.recur(weights, inputs, cache)
        y = self.norm(y).reshape(tokens, -1).astype(jnp.float32)
        gate = jax.nn.silu(self.gate(x).astype(jnp.float32))
        return self.output((y * gate).astype(x.dtype)), cache
