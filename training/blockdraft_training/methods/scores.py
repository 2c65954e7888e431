"""What a draft model gives each token of its vocabulary, in training and in its measurement."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from blockdraft_drafter.dflash.model import DFlash
from blockdraft_models.decoder.products import project
from blockdraft_training.methods.recipe import DraftModel


def tokens_before(
    token_ids: Int[Array, "batch length"], anchors: Int[Array, "batch blocks"], slots: int
) -> Int[Array, "batch blocks slots"]:
    """Return the true token before each drafted one, the anchor before the first.

    A serving draft that was right so far has the same, and after a miss nothing counts.
    """
    positions = anchors[..., None] + jnp.arange(slots)[None, None, :]
    flat = positions.reshape(len(anchors), -1)
    before = jnp.take_along_axis(token_ids, flat, axis=1, mode="clip")
    return before.reshape(positions.shape)


def draft_logits(
    model: DraftModel,
    head: Float[Array, "hot hidden"],
    hidden: Float[Array, "rows hidden"],
    previous: Int[Array, " rows"],
) -> Float[Array, "rows hot"]:
    """Return the logits over the hot vocabulary, float32.

    Args:
        model: The drafter.
        head: The target's output head, its hot rows.
        hidden: Input of the head.
        previous: The token before each row's.
    """
    logits = project(hidden, head.astype(hidden.dtype), dtype=jnp.float32)
    if isinstance(model, DFlash) and model.markov_head is not None:
        logits += model.markov_head(previous)
    return logits
