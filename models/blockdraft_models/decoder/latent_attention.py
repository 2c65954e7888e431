"""Latent attention: keys and values of all heads come from one short vector of each token.

The maps from that vector to the keys and values of each head are applied to the queries and to the
attention's output instead. So every head attends to the vector itself, and to an element group
beside it that is rotated: one key head, whose values are its keys. Source: DeepSeek-V2 (arXiv
2405.04434, section 2.1 and appendix C).
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_models.decoder.attention import EVERYTHING, Attend, LayerCache, Reach
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.layer import RMSNorm, scaled
from blockdraft_models.decoder.linear import Linear, parameter, random_weights
from blockdraft_models.decoder.products import project
from blockdraft_models.decoder.rope import Rotary, rotate
from blockdraft_models.decoder.sharding import EMBED, HEADS, MODEL_AXIS, Axes, Division
from blockdraft_models.kernels import tpu
from blockdraft_models.platform import by_platform

# That of the norms of short vectors, whatever the others have.
_EPS = 1e-6


class HeadMaps(nnx.Module):
    """A linear map of each head; `maps` is [heads*rows columns], as stored.

    Inputs are as many as rows, or with `to_rows` as columns. In a scan over layers `maps` is a
    stack, and `layer` the index in it.
    """

    division: Division | None = None
    layer: Int[Array, ""] | None = None

    def __init__(
        self,
        heads: int,
        rows: int,
        columns: int,
        *,
        to_rows: bool,
        dtype: DTypeLike,
        rngs: nnx.Rngs | None,
    ) -> None:
        """Initialize random maps."""
        spread = (columns if to_rows else rows) ** -0.5
        maps = random_weights(rngs, (heads * rows, columns), spread, dtype)
        self.maps, self.rows, self.to_rows = parameter(maps, (HEADS, None)), rows, to_rows

    def __call__(self, x: Float[Array, "tokens heads in"]) -> Float[Array, "tokens heads out"]:
        """Apply to each head its map, which affects no other row."""
        maps, layer = self.maps[...], self.layer
        if layer is None:
            maps, layer = maps[None], jnp.zeros((), jnp.int32)
        apply = partial(_by_head, height=self.rows, to_rows=self.to_rows)
        if self.division is None:
            return apply(x, maps, layer)
        of_heads, whole = PartitionSpec(), PartitionSpec()
        if self.division.axis is not None:
            of_heads = PartitionSpec(None, MODEL_AXIS)
        mapped: Array = jax.shard_map(
            apply,
            mesh=self.division.mesh,
            in_specs=(of_heads, self.division.spec(leading=1), whole),
            out_specs=of_heads,
            check_vma=False,
        )(x, maps, layer)
        return mapped


def _by_head(
    x: Float[Array, "tokens heads in"],
    maps: Float[Array, "layers rows columns"],
    layer: Int[Array, ""],
    *,
    height: int,
    to_rows: bool,
) -> Float[Array, "tokens heads out"]:
    tokens, heads, _ = x.shape
    layers, _, columns = maps.shape
    by_head = x.swapaxes(0, 1)
    maps = maps.reshape(layers * heads, height, columns)

    def one_by_one(by_head: Array, maps: Array, layer: Array) -> Array:
        mine = jax.lax.dynamic_slice_in_dim(maps, layer * heads, heads)

        def apply(head: tuple[Array, Array]) -> Array:
            rows, matrix = head
            return project(rows, matrix if to_rows else matrix.T)

        mapped: Array = jax.lax.map(apply, (by_head, mine))
        return mapped

    def grouped(by_head: Array, maps: Array, layer: Array) -> Array:
        sizes = jnp.zeros(layers * heads, jnp.int32)
        mine = jnp.full(heads, tokens, jnp.int32)
        sizes = jax.lax.dynamic_update_slice_in_dim(sizes, mine, layer * heads, 0)
        rows = by_head.reshape(heads * tokens, -1)
        mapped = tpu.grouped_product(rows, maps, sizes, outputs_last=not to_rows)
        return mapped.astype(x.dtype).reshape(heads, tokens, -1)

    operands = by_head, maps, layer
    mapped: Array = by_platform(*operands, tpu=grouped, cpu=one_by_one, default=one_by_one)
    of_tokens: Array = jnp.swapaxes(mapped, 0, 1)
    return of_tokens


class LatentAttention(nnx.Module):
    """Projections of latent attention, in the place of self-attention.

    `query_down` and `query_norm` are None where queries come from the layer's input.
    """

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize random projections."""
        sizes = config.latent
        assert sizes is not None
        self.config, self.sizes = config, sizes
        hidden, heads, bias = config.hidden_size, config.num_heads, config.attention_bias

        def linear(fan_in: int, fan_out: int, axes: Axes, bias: bool) -> Linear:
            return Linear(fan_in, fan_out, axes, bias=bias, dtype=dtype, rngs=rngs)

        rank = sizes.query_rank
        self.query_down = linear(hidden, rank, (None, EMBED), bias) if rank else None
        self.query_norm = RMSNorm(rank, _EPS, axis=None, dtype=dtype) if rank else None
        width = heads * (sizes.plain_dim + sizes.rotary_dim)
        self.query = linear(rank or hidden, width, (HEADS, None if rank else EMBED), False)
        self.latent = linear(hidden, sizes.rank + sizes.rotary_dim, (None, EMBED), bias)
        self.latent_norm = RMSNorm(sizes.rank, _EPS, axis=None, dtype=dtype)
        of_heads = partial(HeadMaps, heads, dtype=dtype, rngs=rngs)
        self.keys = of_heads(sizes.plain_dim, sizes.rank, to_rows=False)
        self.values = of_heads(sizes.value_dim, sizes.rank, to_rows=True)
        self.output = linear(heads * sizes.value_dim, hidden, (EMBED, HEADS), bias)

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        rotary: Rotary,
        cache: LayerCache,
        attend: Attend[LayerCache],
        reach: Reach = EVERYTHING,
        kv: tuple[Array, Array] | None = None,
    ) -> tuple[Float[Array, "tokens hidden"], LayerCache]:
        """Projects, rotates, attends, projects back; returns the updated cache."""
        sizes, tokens = self.sizes, x.shape[0]
        inputs = x
        if self.query_down is not None and self.query_norm is not None:
            inputs = self.query_norm(self.query_down(x))
        q = self.query(inputs).reshape(tokens, self.config.num_heads, -1)
        latent = self.latent(x)[:, None]

        def rotated(part: Float[Array, "tokens heads width"]) -> Float[Array, "tokens heads width"]:
            if sizes.interleaved:
                pairs = part.reshape(*part.shape[:2], -1, 2)
                part = pairs.swapaxes(2, 3).reshape(part.shape)
            return rotate(part, *rotary)

        queries = self.keys(q[..., : sizes.plain_dim])
        q = jnp.concatenate([queries, rotated(q[..., sizes.plain_dim :])], axis=-1)
        k = self.latent_norm(latent[..., : sizes.rank])
        k = jnp.concatenate([k, rotated(latent[..., sizes.rank :])], axis=-1)
        attended, cache = attend(scaled(q, self.config.query_scale), k, k, cache, reach)
        values = self.values(attended[..., : sizes.rank])
        return self.output(values.reshape(tokens, -1)), cache
