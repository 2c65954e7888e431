"""Features of the positions that became final, and only those, from the device to the host.

How many positions a step makes final is known once it has run, and what leaves a device has a fixed
shape. So the final ones come first, in pieces of doubling size, of which the host reads as many as
it needs: at most twice as much as there is.
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blockdraft_verifier.device.attention.portable import RaggedBatch


def final_positions_first(
    batch: RaggedBatch,
    draft_count: Int[Array, " rows"],
    accepted: Int[Array, " rows"],
    token_count: int,
) -> Int[Array, " tokens"]:
    """Return flat token indices with rejected drafts and padding moved to the end.

    Features of rejected tokens must never leave the verifier.
    """
    token = jnp.arange(token_count, dtype=jnp.int32)
    row = jnp.searchsorted(batch.row_starts[1:], token, side="right")
    row = jnp.minimum(row, draft_count.shape[0] - 1).astype(jnp.int32)
    ends = batch.row_starts[1:] - draft_count + accepted
    final = (token < ends[row]) & (token < batch.row_starts[-1])
    return jnp.argsort(~final, stable=True)


def cut(
    features: Float[Array, "tokens width"], first: int
) -> tuple[Float[Array, "piece width"], ...]:
    """Cut features into pieces: the first of `first` positions, then each as long as all before.

    Args:
        features: Of all positions of a step.
        first: Positions that any step needs; at least 1.
    """
    total = features.shape[0]
    ends = [min(first, total)]
    while ends[-1] < total:
        ends.append(min(2 * ends[-1], total))
    starts = [0, *ends[:-1]]
    return tuple(features[start:end] for start, end in zip(starts, ends, strict=True))


def split(pieces: Sequence[Array], counts: Sequence[int]) -> list[np.ndarray]:
    """Return the features of each row; pieces that hold none of them stay on the device.

    Args:
        pieces: From `cut`.
        counts: Final positions of each row.
    """
    needed = sum(counts)
    starts = itertools.accumulate((piece.shape[0] for piece in pieces), initial=0)
    wanted = [piece for piece, start in zip(pieces, starts, strict=False) if start < needed]
    read = iter(jax.device_get(wanted))
    rows: list[np.ndarray] = []
    piece, start = np.empty((0, pieces[0].shape[1]), pieces[0].dtype), 0
    for count in counts:
        parts = [piece[start : start + count]]
        start += count
        while (missing := start - len(piece)) > 0:
            piece, start = next(read), missing
            parts.append(piece[:missing])
        rows.append(np.concatenate(parts) if len(parts) > 1 else parts[0])
    return rows
