"""A mixture of experts: a router sends each token to a few of many gated MLPs.

A token's result has the same bits however many others share the step. On CPU the experts go one
after another over all rows; one that no row chose is skipped, and one that a row did not choose
adds zero to it. Elsewhere rows are sorted by expert and multiplied group by group: on TPU by a
kernel, in tiles of a fixed size (docs/adr/0059).
"""

import functools
import operator
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, DTypeLike, Float, Int, Real

from blockdraft_models.decoder.config import Activation, DecoderConfig
from blockdraft_models.decoder.linear import int8_zeros, parameter, random_weights
from blockdraft_models.decoder.mlp import activated, linear_part
from blockdraft_models.decoder.products import project, row_sums
from blockdraft_models.decoder.sharding import (
    EMBED,
    EXPERTS,
    MODEL_AXIS,
    Division,
    sum_over_devices,
)
from blockdraft_models.decoder.stored import LayerMatrix, ScaledMatrix
from blockdraft_models.kernels import tpu
from blockdraft_models.platform import by_platform


class _Map(NamedTuple):
    """The arrays of `ExpertMaps`, each [layers experts ...], or a part of them."""

    weight: Array
    scale: Array | None
    bias: Array | None


class ExpertMaps(nnx.Module):
    """A linear map of every expert, from `hidden` elements to `inner`, or back.

    `weight` is [experts inner hidden] either way: XLA would keep an array whose last axis fills no
    whole lanes in another order, and copy all of it for a kernel at every step. `scale`, of an int8
    weight, and `bias` are [experts out] or None.
    """

    def __init__(
        self,
        experts: int,
        inner: int,
        hidden: int,
        *,
        to_hidden: bool = False,
        bias: bool,
        dtype: DTypeLike,
        rngs: nnx.Rngs | None,
    ) -> None:
        """Initialize random maps."""
        self.to_hidden, width = to_hidden, inner if to_hidden else hidden
        weight = random_weights(rngs, (experts, inner, hidden), width**-0.5, dtype)
        self.weight = parameter(weight, (EXPERTS, None, EMBED))
        self.scale: nnx.Param[Array] | None = None
        zeros = jnp.zeros((experts, hidden if to_hidden else inner), dtype)
        self.bias = parameter(zeros, (EXPERTS, EMBED if to_hidden else None)) if bias else None

    def hold_int8(self) -> None:
        """Replace the weight by int8 zeros with scales, for `quantization.py` to fill."""
        self.weight, scale = int8_zeros(self.weight, inputs=1 if self.to_hidden else 2)
        self.scale = nnx.data(scale)

    def arrays(self) -> "_Map":
        """Return the weight, its scales and the biases."""
        scale, bias = (None if part is None else part[...] for part in (self.scale, self.bias))
        return _Map(self.weight[...], scale, bias)


class Experts(nnx.Module):
    """The experts of one layer and their router; `router` is [experts hidden].

    `scale`, [experts], is a factor of each expert's share, or None (Gemma 4); `correction`,
    [experts], is added to the scores by which experts are chosen, or None (DeepSeek).

    Where they are divided over devices, each device computes the part of its experts in all tokens'
    results; the parts are summed. In a scan over layers every weight is a stack,
    [layers experts ...], and `layer` is the index in it.
    """

    division: Division | None = None
    layer: Int[Array, ""] | None = None

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize random weights."""
        self.config = config
        hidden, inner, count = config.hidden_size, config.intermediate_size, config.num_experts
        bias = config.mlp_bias
        make = partial(ExpertMaps, count, inner, hidden, bias=bias, dtype=dtype, rngs=rngs)
        router = random_weights(rngs, (count, hidden), hidden**-0.5, dtype)
        self.router = parameter(router, (None, EMBED))
        self.router_bias = parameter(jnp.zeros(count, dtype), (None,)) if config.mlp_bias else None
        self.scale: nnx.Param[Array] | None = None
        if config.parallel_expert_size:
            self.scale = nnx.data(parameter(jnp.ones(count, dtype), (None,)))
        self.correction: nnx.Param[Array] | None = None
        if config.sigmoid_routing:
            self.correction = nnx.data(parameter(jnp.zeros(count, jnp.float32), (None,)))
        self.gate, self.up, self.down = make(), make(), make(to_hidden=True)

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        routed: Float[Array, "tokens hidden"] | None = None,
    ) -> Float[Array, "tokens hidden"]:
        """Apply to each token the experts that its router chooses, by `routed` if it is another."""
        chosen, shares = self._route(x if routed is None else routed)
        maps = [linear.arrays() for linear in (self.gate, self.up, self.down)]
        layer = self.layer
        if layer is None:
            layer, maps = jnp.zeros((), jnp.int32), jax.tree.map(lambda part: part[None], maps)
        apply = partial(_apply, kind=self.config.activation)
        if self.division is None:
            return apply(x, chosen, shares, layer, maps)
        divided = self.division.axis is not None

        def of_this_device(
            x: Array, chosen: Array, shares: Array, layer: Array, maps: list[_Map]
        ) -> Array:
            if not divided:
                return apply(x, chosen, shares, layer, maps)
            first = jax.lax.axis_index(MODEL_AXIS) * maps[0].weight.shape[1]
            part = apply(x, chosen - first, shares, layer, maps, dtype=jnp.float32)
            return sum_over_devices(part, x.dtype)

        whole = PartitionSpec()
        summed: Array = jax.shard_map(
            of_this_device,
            mesh=self.division.mesh,
            in_specs=(whole, whole, whole, whole, self.division.spec(leading=1)),
            out_specs=whole,
            check_vma=False,
        )(x, chosen, shares, layer, maps)
        return summed

    def _route(
        self, x: Float[Array, "tokens hidden"]
    ) -> tuple[Int[Array, "tokens chosen"], Float[Array, "tokens chosen"]]:
        """Return the experts of each token and their shares in its result, in float32."""
        router = (
            self.router[...] if self.layer is None else LayerMatrix(self.router[...], self.layer)
        )
        division = self.division and self.division._replace(axis=None)
        scores = project(x, router, dtype=jnp.float32, division=division)
        if self.router_bias is not None:
            scores = scores + self.router_bias[...].astype(jnp.float32)[None, :]
        if self.correction is not None:
            return self._by_sigmoids(scores, self.correction[...])
        best, chosen = jax.lax.top_k(scores, self.config.experts_per_token)
        among = best if self.config.normalized_routing else scores
        # Not JAX's softmax, whose sums depend on the number of rows on CPU.
        top = best[:, :1]
        shares = jnp.exp(best - top) / row_sums(jnp.exp(among - top))[:, None]
        if self.scale is not None:
            shares = shares * self.scale[...].astype(jnp.float32)[chosen]
        return chosen, shares

    def _by_sigmoids(
        self, scores: Float[Array, "tokens experts"], correction: Float[Array, " experts"]
    ) -> tuple[Int[Array, "tokens chosen"], Float[Array, "tokens chosen"]]:
        """Choose experts of the groups whose two best are best (arXiv 2412.19437, section 2.1)."""
        config, shares = self.config, jax.nn.sigmoid(scores)
        ranked = shares + correction[None, :]
        if config.routing_groups > 1:
            groups = ranked.reshape(len(ranked), config.routing_groups, -1)
            first, second = jnp.moveaxis(jax.lax.top_k(groups, 2)[0], 2, 0)
            _, best = jax.lax.top_k(first + second, config.best_groups)
            among = (best[:, :, None] == jnp.arange(config.routing_groups)[None, None]).any(axis=1)
            ranked = jnp.where(among[:, :, None], groups, -jnp.inf).reshape(ranked.shape)
        _, chosen = jax.lax.top_k(ranked, config.experts_per_token)
        shares = jnp.take_along_axis(shares, chosen, axis=1)
        if config.normalized_routing:
            shares = shares / (row_sums(shares) + 1e-20)[:, None]
        return chosen, shares * config.routing_scale


def _apply(
    x: Float[Array, "tokens hidden"],
    chosen: Int[Array, "tokens chosen"],
    shares: Float[Array, "tokens chosen"],
    layer: Int[Array, ""],
    maps: list[_Map],
    *,
    kind: Activation,
    dtype: DTypeLike | None = None,
) -> Float[Array, "tokens hidden"]:
    """Return the weighted sum over the experts of `maps`; numbers outside theirs add nothing."""
    result: Array = by_platform(
        x,
        chosen,
        shares,
        layer,
        maps,
        cpu=partial(_one_by_one, kind=kind),
        tpu=partial(_group_by_group, tpu.grouped_product, kind=kind),
        default=partial(_group_by_group, _grouped, kind=kind),
    )
    return result.astype(dtype or x.dtype)


def _one_by_one(
    x: Array, chosen: Array, shares: Array, layer: Array, maps: list[_Map], *, kind: Activation
) -> Float[Array, "tokens hidden"]:
    maps = jax.tree.map(lambda part: part[layer], maps)

    def add(total: Array, expert: tuple[Array, list[_Map]]) -> tuple[Array, None]:
        number, mine = expert
        share = jnp.where(chosen == number, shares, 0.0).sum(axis=1, keepdims=True)

        def computed() -> Array:
            gate, up = (_mapped(x, part) for part in mine[:2])
            down = _mapped(activated(kind, gate) * linear_part(kind, up), mine[2], to_hidden=True)
            return down.astype(jnp.float32) * share

        is_chosen = jnp.any(chosen == number)
        return total + jax.lax.cond(is_chosen, computed, lambda: jnp.zeros_like(total)), None

    numbers = jnp.arange(len(maps[0].weight), dtype=chosen.dtype)
    total, _ = jax.lax.scan(add, jnp.zeros(x.shape, jnp.float32), (numbers, maps))
    return total


def _mapped(x: Array, part: _Map, *, to_hidden: bool = False) -> Array:
    matrix = part.weight.T if to_hidden else part.weight
    y = project(x, matrix if part.scale is None else ScaledMatrix(matrix, part.scale))
    return y if part.bias is None else y + part.bias[None, :]


def _group_by_group(
    grouped: Callable[..., Array],
    x: Array,
    chosen: Array,
    shares: Array,
    layer: Array,
    maps: list[_Map],
    *,
    kind: Activation,
) -> Float[Array, "tokens hidden"]:
    (layers, count), (tokens, per_token) = maps[0].weight.shape[:2], chosen.shape
    # Every expert of every layer is a group; those of other layers are empty.
    maps = jax.tree.map(lambda part: part.reshape(layers * count, *part.shape[2:]), maps)
    here = (chosen >= 0) & (chosen < count)
    # Experts of other devices come last, in no group.
    expert = jnp.where(here, chosen + layer * count, layers * count).reshape(-1)
    order = jnp.argsort(expert, stable=True)
    sizes = jnp.bincount(expert, length=layers * count).astype(jnp.int32)
    of_row = jnp.minimum(expert[order], layers * count - 1)

    def mapped(rows: Array, part: _Map, *, to_hidden: bool = False) -> Array:
        y = grouped(rows, part.weight, sizes, outputs_last=to_hidden)
        if part.scale is not None:
            y = y * part.scale[of_row]
        y = y.astype(rows.dtype)
        return y if part.bias is None else y + part.bias[of_row]

    rows = x[order // per_token]
    gate, up = (mapped(rows, part) for part in maps[:2])
    down = mapped(activated(kind, gate) * linear_part(kind, up), maps[2], to_hidden=True)
    # Rows of no group are undefined.
    mine = (expert[order] < layers * count)[:, None]
    down = jnp.where(mine, down.astype(jnp.float32), 0.0)
    back = jnp.zeros_like(down).at[order].set(down, unique_indices=True)
    parts = (back.reshape(tokens, per_token, -1) * shares[..., None]).swapaxes(0, 1)
    total: Array = functools.reduce(operator.add, parts)
    return total


def _grouped(
    rows: Float[Array, "rows width"],
    weights: Real[Array, "groups ..."],
    sizes: Int[Array, " groups"],
    *,
    outputs_last: bool,
) -> Float[Array, "rows outs"]:
    weights = weights.astype(rows.dtype)
    weights = weights if outputs_last else weights.swapaxes(1, 2)
    product: Array = jax.lax.ragged_dot(rows, weights, sizes, preferred_element_type=jnp.float32)
    return product
