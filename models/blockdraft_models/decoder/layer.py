"""Parts of decoder layers: RMS normalization, and the projections of attention."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.decoder.attention import EVERYTHING, Attend, LayerCache, Reach
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.linear import Linear, parameter
from blockdraft_models.decoder.products import ordered, row_sums
from blockdraft_models.decoder.rope import Rotary, rotate
from blockdraft_models.decoder.sharding import (
    EMBED,
    GLOBAL_KV_HEADS,
    HEADS,
    KV_HEADS,
    Division,
)
from blockdraft_models.kernels import calls, tpu

LAYER_SCOPE = "decoder_layer"
"""Name of a layer's operations in profiles and compiled programs."""


class RMSNorm(nnx.Module):
    """Root-mean-square normalization over the last axis, computed in float32.

    `heads` is the logical name of the axis before the last, or None where each token is one row;
    a `wide` one is rounded only after it is scaled; `division` is that of the rows among devices,
    None for a single device.
    """

    division: Division | None = None

    def __init__(
        self,
        width: int,
        eps: float,
        *,
        axis: str | None = EMBED,
        heads: str | None = None,
        offset: float = 0.0,
        wide: bool = False,
        dtype: DTypeLike,
    ) -> None:
        """Start with unit scale; `axis` names the normalized axis."""
        self.scale = parameter(jnp.full(width, 1.0 - offset, dtype), (axis,))
        self.heads, self.eps, self.offset, self.wide = heads, eps, offset, wide

    def __call__(self, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        """Normalize each row and scale it; the result has the dtype of `x`."""
        operands = x, self.scale[...]
        if self.wide:
            operands = x.astype(jnp.float32), self.scale[...].astype(jnp.float32)
        return normalize(*operands, self.eps, self.offset, self.division).astype(x.dtype)


class UnscaledNorm(RMSNorm):
    """Root-mean-square normalization of heads, and no more."""

    def __init__(self, eps: float, heads: str | None) -> None:
        """Begin without weights."""
        self.eps, self.heads = eps, heads

    def __call__(self, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        """Normalize each row; the result has the dtype of `x`."""
        return normalize(x, jnp.ones(x.shape[-1], x.dtype), self.eps, division=self.division)


def normalize(
    x: Float[Array, "*rows width"],
    scale: Float[Array, " width"],
    eps: float,
    offset: float = 0.0,
    division: Division | None = None,
) -> Float[Array, "*rows width"]:
    """Normalize as an `RMSNorm` of this scale does; `eps` is added to the mean square.

    The division is that of `x`. Without it, XLA chooses the order of sums on TPU.
    """

    def in_rows(function: Callable[[Array, Array], Array], x: Array, scale: Array) -> Array:
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return function(rows, scale).reshape(x.shape)

    plain = partial(_plain_normalize, eps=eps, offset=offset)
    kernel = partial(in_rows, partial(calls.normalize, eps=eps, offset=offset))
    if division is None:
        return ordered(plain, kernel, plain, plain)(x, scale)
    in_tile = partial(plain, sums=partial(jnp.sum, axis=-1))
    on_tpu = partial(in_rows, partial(tpu.by_tiles, in_tile))
    normalized: Array = jax.shard_map(
        ordered(plain, kernel, plain, on_tpu),
        mesh=division.mesh,
        in_specs=(division.spec(), PartitionSpec()),
        out_specs=division.spec(),
        check_vma=False,
    )(x, scale)
    return normalized


def _plain_normalize(
    x: Array,
    scale: Array,
    eps: float,
    offset: float,
    sums: Callable[[Array], Array] = row_sums,
) -> Array:
    wide = x.astype(jnp.float32)
    mean_square = (sums(jnp.square(wide)) / x.shape[-1])[..., None]
    scale = scale.reshape((1,) * (x.ndim - 1) + (-1,))
    if offset:
        scaled = wide * jax.lax.rsqrt(mean_square + eps) * (offset + scale.astype(jnp.float32))
        return scaled.astype(x.dtype)
    # Rounded before scaling, as the published models were trained.
    return (wide * jax.lax.rsqrt(mean_square + eps)).astype(x.dtype) * scale


class AttentionProjections(nnx.Module):
    """Everything of self-attention but the attending itself, which the caller provides.

    `query_norm` and `key_norm` normalize each head (Qwen3), or all heads together (OLMo), or are
    None; so are `sinks`, a score for each head (gpt-oss). Without a `value` projection, values are
    the keys as projected, and `value_norm` normalizes them, or is None; without a `key` projection,
    both are another layer's (Gemma 4). `gate` opens and closes each element of the output
    (Qwen3-Next), or is None.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        input_size: int | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs | None,
    ) -> None:
        """Initialize projections of inputs that are `input_size` wide, by default `hidden_size`."""
        self.config = config
        hidden = config.hidden_size
        inputs = hidden if input_size is None else input_size
        q_width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim

        def linear(fan_in: int, fan_out: int, axes: tuple[str, str], bias: bool = True) -> Linear:
            bias = bias and config.attention_bias
            return Linear(fan_in, fan_out, axes, bias=bias, dtype=dtype, rngs=rngs)

        def head_norm(width: int, heads: str) -> RMSNorm | None:
            if not config.qk_norm:
                return None
            if config.whole_qk_norm:
                return norm(config, width, None, dtype)
            return norm(config, config.head_dim, None, dtype, heads=heads)

        self.query = linear(inputs, q_width, (HEADS, EMBED))
        has_keys, has_values = config.own_kv, config.own_kv and not config.values_are_keys
        kv_heads = GLOBAL_KV_HEADS if config.is_global else KV_HEADS
        self.key = linear(inputs, kv_width, (kv_heads, EMBED)) if has_keys else None
        self.value = linear(inputs, kv_width, (kv_heads, EMBED)) if has_values else None
        self.output = linear(q_width, hidden, (EMBED, HEADS), config.output_bias)
        gated = config.output_gate
        self.gate = linear(inputs, q_width, (HEADS, EMBED)) if gated else None
        self.query_norm = head_norm(q_width, HEADS)
        self.key_norm = head_norm(kv_width, kv_heads) if has_keys else None
        normalizes, eps = has_keys and config.value_norm, config.rms_norm_eps
        self.value_norm = UnscaledNorm(eps, kv_heads) if normalizes else None
        self.sinks: nnx.Param[Array] | None = None
        if config.attention_sinks:
            self.sinks = nnx.data(parameter(jnp.zeros(config.num_heads, dtype), (HEADS,)))

    @property
    def key_and_value(self) -> tuple[Linear, Linear]:
        """Both projections; ValueError in a layer without."""
        if self.key is None or self.value is None:
            raise ValueError("the layer has no projection to values of its own")
        return self.key, self.value

    def __call__(
        self,
        x: Float[Array, "tokens inputs"],
        rotary: Rotary,
        cache: LayerCache,
        attend: Attend[LayerCache],
        reach: Reach = EVERYTHING,
        kv: tuple[Array, Array] | None = None,
    ) -> tuple[Float[Array, "tokens hidden"], LayerCache]:
        """Projects, normalizes, rotates, attends, projects back; returns the updated cache.

        A layer without keys attends to `kv`, those of another.
        """
        tokens, head_dim = x.shape[0], self.config.head_dim
        q = self.query(x).reshape(tokens, self.config.num_heads, head_dim)
        if self.key is not None:
            k = self.key(x).reshape(tokens, self.config.num_kv_heads, head_dim)
            v = k if self.value is None else self.value(x).reshape(k.shape)
        elif kv is not None:
            k, v = kv
        else:
            raise ValueError("a layer without keys needs those of another")
        q, own_k = self._normalized(self.query_norm, q), self._normalized(self.key_norm, k)
        if self.value_norm is not None:
            v = self.value_norm(v)
        if self.config.query_scale != 1.0:
            q = q * jnp.asarray(self.config.query_scale, q.dtype)
        q = rotate(q, *rotary)
        if self.key is not None:
            k = rotate(own_k, *rotary)
        if self.sinks is not None:
            reach = reach._replace(sinks=self.sinks[...].astype(jnp.float32))
        attended, cache = attend(q, k, v, cache, reach)
        attended = attended.reshape(tokens, -1)
        if self.gate is not None:
            attended = attended * jax.nn.sigmoid(self.gate(x))
        return self.output(attended), cache

    def _normalized(
        self, norm: RMSNorm | None, heads: Float[Array, "tokens heads head_dim"]
    ) -> Float[Array, "tokens heads head_dim"]:
        if norm is None:
            return heads
        if self.config.whole_qk_norm:
            return norm(heads.reshape(heads.shape[0], -1)).reshape(heads.shape)
        return norm(heads)


def scaled(y: Float[Array, "*rows width"], factor: float) -> Float[Array, "*rows width"]:
    """Multiply in float32: in bfloat16 the factor itself would be rounded."""
    return y if factor == 1.0 else (y.astype(jnp.float32) * factor).astype(y.dtype)


def norm(
    config: DecoderConfig,
    width: int,
    axis: str | None,
    dtype: DTypeLike,
    heads: str | None = None,
) -> RMSNorm:
    """Return a norm with the epsilon, the offset and the rounding of a decoder."""
    eps, offset, wide = config.rms_norm_eps, config.norm_offset, config.wide_norms
    return RMSNorm(width, eps, axis=axis, heads=heads, offset=offset, wide=wide, dtype=dtype)
