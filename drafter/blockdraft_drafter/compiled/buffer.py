"""The draft KV cache: keys and values of every sequence's context, in static arrays on the device.

Lengths are counters kept by the host, never array shapes, so nothing is compiled again as contexts
grow. Keys are stored normalized and rotated, values as projected.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.sharding import HEADS, KV_HEADS, Placement

# One layer's keys and values, each [slots, kv_heads, capacity, head_dim]: what one head reads lies
# side by side. A plain tuple is a pytree that can be donated whole.
LayerKV = tuple[Array, Array]

# Keys and values of the blocks themselves, which are never stored.
BlockKV = tuple[Array, Array]

# Positions attended to at once. Larger chunks waste work on short contexts, smaller ones pay
# the loop more often.
CHUNK = 128

# A TPU's vector registers are this wide. A narrower last axis would be laid out anew, the whole
# buffer copied, before every kernel that reads it.
_TPU_LANES = 128


class CacheView(NamedTuple):
    """One layer's draft KV cache, and the part of it that a batch attends to."""

    layer: LayerKV  # keys and values of every slot
    slots: Int[Array, " blocks"]  # cache slot of each block, [blocks]; any in padding
    lengths: Int[Array, " blocks"]  # positions of each slot that exist, [blocks]; 0 in padding
    first_kv_head: int | Int[Array, ""] = 0  # the KV head of the layer that is attended to first


@dataclass(frozen=True, slots=True)
class HeadSharding:
    """The mesh axes that divide query heads and KV heads; no head is ever cut in two."""

    mesh: Mesh  # the devices
    # Divides the query heads; None when every device attends with all of them.
    query_axis: str | None
    kv_axis: str | None  # divides the KV heads; None when every device holds all of them

    @classmethod
    def of(cls, config: DecoderConfig, placement: Placement) -> "HeadSharding":
        """Return the division that follows from the placement of the projections.

        With fewer KV heads than devices, a device keeps to its own query heads as long as one KV
        head serves them all.
        """
        query_axis = placement.sharding((HEADS,), config).spec[0]
        kv_axis = placement.sharding((KV_HEADS,), config).spec[0]
        if query_axis is not None and kv_axis is None:
            local_heads = config.num_heads // placement.mesh.shape[query_axis]
            if config.num_heads // config.num_kv_heads % local_heads:
                query_axis = None
        return cls(placement.mesh, query_axis, kv_axis)

    @property
    def on_tpu(self) -> bool:
        """Whether the devices are TPU chips, present or only compiled for."""
        return bool(self.mesh.devices.flat[0].platform == "tpu")

    @property
    def cache(self) -> PartitionSpec:
        """Partition of the draft KV cache, [slots, kv_heads, capacity, head_dim]."""
        return PartitionSpec(None, self.kv_axis, None, None)


def shapes(
    config: DecoderConfig,
    *,
    slots: int,
    capacity: int,
    dtype: DTypeLike,
    sharding: HeadSharding | None = None,
) -> list[Any]:
    """Return shape, type and place of a cache, one pair of `jax.ShapeDtypeStruct` per layer.

    `capacity`, positions per slot, is rounded up to whole chunks. Without `sharding` it is for the
    default device.
    """
    head_dim = config.head_dim
    if sharding is not None and sharding.on_tpu:
        head_dim = _round_up(head_dim, _TPU_LANES)
    part = jax.ShapeDtypeStruct(
        (slots, config.num_kv_heads, _round_up(capacity, CHUNK), head_dim),
        dtype,
        sharding=None if sharding is None else NamedSharding(sharding.mesh, sharding.cache),
    )
    return [(part, part) for _ in range(config.num_layers)]


def fitting_capacity(
    config: DecoderConfig,
    *,
    slots: int,
    dtype: DTypeLike,
    budget_bytes: int,
    sharding: HeadSharding | None = None,
) -> int:
    """Return the most positions per slot, in whole chunks, for `budget_bytes` on each device."""
    chunk = shapes(config, slots=slots, capacity=CHUNK, dtype=dtype, sharding=sharding)
    parts = [part for pair in chunk for part in pair]
    shard_shapes = [
        part.shape if part.sharding is None else part.sharding.shard_shape(part.shape)
        for part in parts
    ]
    chunk_bytes: int = sum(
        math.prod(shape) * part.dtype.itemsize
        for shape, part in zip(shard_shapes, parts, strict=True)
    )
    return budget_bytes // chunk_bytes * CHUNK


def allocate(shapes: Any) -> Any:
    """Return zeros of some shapes, types and places, in the same pytree."""
    return jax.tree.map(
        lambda part: jnp.zeros(part.shape, part.dtype, device=part.sharding), shapes
    )


def write(
    cache: LayerKV,
    slots: Int[Array, " rows"],
    positions: Int[Array, " rows"],
    keys: Float[Array, "rows kv_heads head_dim"],
    values: Float[Array, "rows kv_heads head_dim"],
) -> LayerKV:
    """Store projected rows; rows of padding name a slot beyond the last and are dropped."""
    old_keys, old_values = cache
    _, kv_heads, _, width = old_keys.shape
    # One head of one position at a time. Given all heads of a position, XLA would turn the whole
    # buffer around on a TPU.
    place = (slots[:, None], jnp.arange(kv_heads)[None, :], positions[:, None])
    return (
        old_keys.at[place].set(widened(keys, width).astype(old_keys.dtype), mode="drop"),
        old_values.at[place].set(widened(values, width).astype(old_values.dtype), mode="drop"),
    )


def widened(
    array: Float[Array, "*rows head_dim"], head_dim: int
) -> Float[Array, "*rows wide_head_dim"]:
    """Return heads padded with zeros to the width of the cache's."""
    missing = head_dim - array.shape[-1]
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)]) if missing else array


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
