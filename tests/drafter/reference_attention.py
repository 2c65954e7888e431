"""Attention of blocks over contexts in float64 NumPy, one query at a time, from the definition."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def reference_attention(
    queries: np.ndarray,
    own: tuple[np.ndarray, np.ndarray],
    layer: tuple[np.ndarray, np.ndarray],
    slots: list[int],
    lengths: list[int],
    *,
    window: int | None,
    is_causal: bool,
) -> Floats:
    """Attend.

    Args:
        queries: Scaled, [blocks, kv_heads, queries, group, head_dim], at the last of the own keys.
        own: Keys and values, each [blocks, kv_heads, keys, head_dim].
        layer: Keys and values of contexts, each [slots, kv_heads, capacity, head_dim].
        slots: Context of each block; not read where the length is 0.
        lengths: Positions of each context.
        window: A key as far away as this, or further, is not seen.
        is_causal: Whether later keys are not seen.
    """
    result = np.zeros(queries.shape)
    blocks, kv_heads, count, group, _ = queries.shape
    own_count = own[0].shape[2]
    for block in range(blocks):
        length = lengths[block]
        # The own keys come behind the context, at the positions that follow it.
        keys, values = (
            np.concatenate([stored[slots[block], :, :length] if length else mine[:, :0], mine], 1)
            for stored, mine in zip(layer, (part[block] for part in own), strict=True)
        )
        for query in range(count):
            at = length + own_count - count + query
            seen = [
                position
                for position in range(length + own_count)
                if (window is None or abs(at - position) < window)
                and not (is_causal and position > at)
            ]
            for head in range(kv_heads):
                for member in range(group):
                    q = queries[block, head, query, member].astype(np.float64)
                    scores = keys[head, seen].astype(np.float64) @ q
                    weights = np.exp(scores - scores.max())
                    result[block, head, query, member] = (
                        weights / weights.sum() @ values[head, seen].astype(np.float64)
                    )
    return result
