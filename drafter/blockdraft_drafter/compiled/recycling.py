"""Biases of the drafter's logits towards the target's choices after rejected tokens.

A verification computes the target's choice after every drafted token, also after those that are
rejected. Many of these choices are right for the text that came instead too: the next draft covers
the same positions, and goes through many of the same tokens. At T > 0 a choice at the same position
was made with the same Gumbel noise, which makes it the better guess.

Source: token recycling (arXiv 2408.08696), which drafts such tokens themselves, without a drafter.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from blockdraft_drafter.compiled.packing import KEPT_CHOICES, PackedBlocks, PackedRecycled
from blockdraft_drafter.method import DraftRow

_NOTHING = -1


class Biases(NamedTuple):
    """Terms that are added to the logit of a recycled choice; fitted (docs/adr/0056)."""

    elsewhere: float  # at any position, after the same token
    same: float  # at its own position, after the same token
    first: float  # at its own position, after the anchor, which came instead of a rejected token


GREEDY = Biases(elsewhere=1.0, same=1.5, first=0.5)
SAMPLED = Biases(elsewhere=0.5, same=3.0, first=1.0)


class RecycledOfSlots:
    """The latest recycled choices of the sequence in each slot, on the host."""

    def __init__(self, slots: int, vocab_size: int, draft_ids: Int[np.ndarray, " draft"] | None):
        """Begin without choices; without `draft_ids` all tokens can be drafted."""
        self._choices = np.full((3, slots, KEPT_CHOICES), _NOTHING, np.int32)
        self._index: NDArray[np.int32] | None = None
        if draft_ids is not None:
            # The last element is that of no token.
            self._index = np.full(vocab_size + 1, _NOTHING, np.int32)
            self._index[draft_ids] = np.arange(len(draft_ids))

    def add(self, row: DraftRow) -> None:
        """Keep the choices of a row; one without context begins another sequence."""
        choices = self._choices[:, row.slot]
        if row.context_length == 0:
            choices[:] = _NOTHING
        count = min(len(row.recycled.positions), KEPT_CHOICES)
        if count:
            choices[:, :-count] = choices[:, count:]
            choices[:, -count:] = [array[-count:] for array in row.recycled]

    def of(self, rows: Sequence[DraftRow], size: int) -> PackedRecycled:
        """Return the choices of the rows' slots, padded to `size` blocks without choices."""
        packed = np.full((3, size, KEPT_CHOICES), _NOTHING, np.int32)
        packed[:, : len(rows)] = self._choices[:, [row.slot for row in rows]]
        positions, after, tokens = packed
        return PackedRecycled(
            positions, after, tokens if self._index is None else self._index[tokens]
        )


def with_recycled(
    logits: Float[Array, "blocks draft"],
    blocks: PackedBlocks,
    previous: Int[Array, " blocks"],
    position: Int[Array, " blocks"],
) -> Float[Array, "blocks draft"]:
    """Return the logits of each block's token at a position, biased by the recycled choices.

    `previous` are the tokens before, as the target's ids.
    """
    recycled, warm = blocks.recycled, (blocks.sampling.temperature > 0.0)[:, None]
    elsewhere, same, first = (
        jnp.where(warm, sampled, greedy) for sampled, greedy in zip(SAMPLED, GREEDY, strict=True)
    )
    here = recycled.positions == position[:, None]
    begins = (position == blocks.lengths + 1)[:, None]
    bias = jnp.where(
        recycled.after == previous[:, None],
        jnp.where(here, same, elsewhere),
        jnp.where(here & begins, first, 0.0),
    )
    in_vocabulary = recycled.tokens >= 0
    rows = jnp.arange(logits.shape[0])[:, None]
    return logits.at[rows, jnp.where(in_vocabulary, recycled.tokens, 0)].add(
        jnp.where(in_vocabulary, bias, 0.0)
    )
