"""The draft layer of DFlash 2: a short convolution along the block before and after each sublayer.

The output at a position is a weighted sum of the input there and of the input before it, each
channel with weights of its own: learned ones, plus a correction by the sublayer's normalized input,
which neighbouring channels share. Only the block's own positions take part, not the context, and
before the anchor there are zeros.

Source: z-lab/dflash, `dflash/model.py`.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_drafter.compiled.definition import DraftTensor
from blockdraft_models.decoder.attention import (
    EVERYTHING,
    NO_SIDE_INPUTS,
    Attend,
    LayerCache,
    Reach,
    SideInputs,
)
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.decoder_layer import DecoderLayer
from blockdraft_models.decoder.layer import LAYER_SCOPE
from blockdraft_models.decoder.linear import Linear, parameter
from blockdraft_models.decoder.rope import Rotary
from blockdraft_models.decoder.sharding import EMBED

TAPS = 2
"""Positions that a convolution reads."""
_SIDES = 2  # before the sublayer and after it


class DynamicConvolution(nnx.Module):
    """The two convolutions around one sublayer."""

    def __init__(
        self, hidden: int, group_size: int, block_inputs: int, *, dtype: DTypeLike
    ) -> None:
        """Start as the identity, as published; `group_size` channels share a correction."""
        self.group_size, self.block_inputs = group_size, block_inputs
        kernels = jnp.zeros((_SIDES, TAPS, hidden), dtype).at[:, 0].set(1)
        self.base_kernel = parameter(kernels, (None, None, EMBED))
        corrections = _SIDES * TAPS * hidden // group_size
        self.kernel_projection = Linear(
            hidden, corrections, ("kernels", EMBED), bias=False, dtype=dtype, rngs=None
        )

    def kernels(
        self, normalized: Float[Array, "tokens hidden"]
    ) -> Float[Array, "sides taps tokens hidden"]:
        """Return the weights on both sides, float32, given the sublayer's normalized input."""
        tokens, hidden = normalized.shape
        corrections = self.kernel_projection(normalized).astype(jnp.float32)
        grouped = corrections.reshape(tokens, _SIDES, TAPS, hidden // self.group_size)
        shared = jnp.repeat(grouped.transpose(1, 2, 0, 3), self.group_size, axis=-1)
        return self.base_kernel[...].astype(jnp.float32)[:, :, None] + shared

    def convolve(
        self, x: Float[Array, "tokens hidden"], kernel: Float[Array, "taps tokens hidden"]
    ) -> Float[Array, "tokens hidden"]:
        """Convolve along each block; blocks lie side by side."""
        blocks = x.reshape(-1, self.block_inputs, x.shape[-1])
        before = jnp.pad(blocks[:, :-1], ((0, 0), (1, 0), (0, 0))).reshape(x.shape)
        return (kernel[0] * x + kernel[1] * before).astype(x.dtype)


class ConvolvedLayer(DecoderLayer):
    """A decoder layer with convolutions around attention and MLP."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        group_size: int,
        block_inputs: int,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        """Initialize a random layer whose convolutions change nothing."""
        super().__init__(config, dtype=dtype, rngs=rngs)
        hidden = config.hidden_size
        self.attention_conv = DynamicConvolution(hidden, group_size, block_inputs, dtype=dtype)
        self.mlp_conv = DynamicConvolution(hidden, group_size, block_inputs, dtype=dtype)

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
        assert self.attention_norm is not None  # drafters' layers always have both
        assert self.mlp_norm is not None
        with jax.named_scope(LAYER_SCOPE):
            conv, normalized = self.attention_conv, self.attention_norm(x)
            before, after = conv.kernels(normalized)
            convolved = conv.convolve(normalized, before)
            attended, cache = self.attention(convolved, rotary, cache, attend)
            x = x + conv.convolve(attended, after)
            conv, normalized = self.mlp_conv, self.mlp_norm(x)
            before, after = conv.kernels(normalized)
            return x + conv.convolve(self.mlp(conv.convolve(normalized, before)), after), cache


def convolution_tensors(layer: str, hidden: int, group_size: int) -> Iterator[DraftTensor]:
    """Yield the weights of the convolutions of the layer with this name."""
    for name in ("attention_conv", "mlp_conv"):
        base = f"{layer}.{name}.base_kernel"
        yield DraftTensor(base, base, (_SIDES, TAPS, hidden))
        projection = f"{layer}.{name}.kernel_projection.weight"
        yield DraftTensor(projection, projection, (_SIDES * TAPS * hidden // group_size, hidden))
