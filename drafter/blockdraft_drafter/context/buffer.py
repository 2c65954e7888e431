"""The context buffer: every sequence's projected context, in static arrays on the device.

Lengths are counters kept by the host (`slots.py`), never array shapes, so nothing is compiled
again as contexts grow. Keys are stored normalized and rotated, values as projected.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_drafter.context.sharding import HeadSharding
from blockdraft_models.decoder.config import DecoderConfig

# One layer's keys and values, each [slots, kv_heads, capacity, head_dim]: what one head reads lies
# side by side. A plain tuple is a pytree that can be donated whole.
LayerContext = tuple[Array, Array]

# Positions attended to at once. Larger chunks waste work on short contexts, smaller ones pay
# the loop more often.
CHUNK = 128

# A TPU's vector registers are this wide. A narrower last axis would be laid out anew, the whole
# buffer copied, before every kernel that reads it.
_TPU_LANES = 128


def shapes(
    config: DecoderConfig,
    *,
    slots: int,
    capacity: int,
    dtype: DTypeLike,
    sharding: HeadSharding | None = None,
) -> list[Any]:
    """Return shape, type and place of a buffer, one pair of `jax.ShapeDtypeStruct` per layer.

    Args:
        config: The draft layers.
        slots: Number of sequences.
        capacity: Positions per slot; rounded up to whole chunks.
        dtype: Element type.
        sharding: Of the heads; None for the default device.
    """
    head_dim = config.head_dim
    if sharding is not None and sharding.on_tpu:
        head_dim = _round_up(head_dim, _TPU_LANES)
    part = jax.ShapeDtypeStruct(
        (slots, config.num_kv_heads, _round_up(capacity, CHUNK), head_dim),
        dtype,
        sharding=None if sharding is None else NamedSharding(sharding.mesh, sharding.context),
    )
    return [(part, part) for _ in range(config.num_layers)]


def allocate(shapes: Any) -> Any:
    """Return zeros of some shapes, types and places, in the same pytree."""
    return jax.tree.map(
        lambda part: jnp.zeros(part.shape, part.dtype, device=part.sharding), shapes
    )


def write(
    context: LayerContext,
    slots: Int[Array, " rows"],
    positions: Int[Array, " rows"],
    keys: Float[Array, "rows kv_heads head_dim"],
    values: Float[Array, "rows kv_heads head_dim"],
) -> LayerContext:
    """Store projected rows.

    Args:
        context: The layer's arrays.
        slots: Where each row goes; padding rows name a slot beyond the last and are dropped.
        positions: Position of each row in its sequence.
        keys: Normalized, rotated keys.
        values: Values.
    """
    old_keys, old_values = context
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
    """Return heads with as many zeros behind them as the buffer's have."""
    missing = head_dim - array.shape[-1]
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)]) if missing else array


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
