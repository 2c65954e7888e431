"""The context buffer: every sequence's projected context, in static arrays on the device.

Lengths are counters kept by the host (`context.py`), never array shapes, so nothing is compiled
again as contexts grow. Keys are stored normalized and rotated, values as projected.
"""

import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_models.config import DecoderConfig

# One layer's keys and values, each [slots, capacity, kv_heads, head_dim]. A plain tuple is a
# pytree that can be donated whole.
LayerContext = tuple[Array, Array]

# Positions attended to at once. Larger chunks waste work on short contexts, smaller ones pay
# the loop more often.
CHUNK = 128


def allocate(
    config: DecoderConfig, *, slots: int, capacity: int, dtype: DTypeLike
) -> list[LayerContext]:
    """Return an empty buffer, one pair of arrays per draft layer.

    Args:
        config: The draft layers.
        slots: Number of sequences.
        capacity: Positions per slot; rounded up to whole chunks.
        dtype: Element type.
    """
    capacity = -(-capacity // CHUNK) * CHUNK
    shape = (slots, capacity, config.num_kv_heads, config.head_dim)
    return [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(config.num_layers)]


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
    return (
        old_keys.at[slots, positions].set(keys, mode="drop"),
        old_values.at[slots, positions].set(values, mode="drop"),
    )
