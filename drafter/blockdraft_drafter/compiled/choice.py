"""Which token is drafted: the one that the target will most likely choose.

The target takes its likeliest token, or samples: then it adds noise to its logits that follows from
the request's seed and the position alone, and takes the token with the greatest sum
(docs/adr/0003). A drafter that adds the same noise to logits like the target's finds the same token
more often than one that drafts its likeliest (docs/adr/0027).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.sampling import (
    SamplingArrays,
    filter_logits,
    gumbel_noise,
    gumbel_noise_of,
)

SHARPNESS = 1.3
"""What the drafter's logits are multiplied by before the noise is added; measured."""
NOISY_ODDS = 1.5
"""A token drafted with noise is right about as often as its softmax to this power; measured."""


def draft_tokens(
    logits: Float[Array, "choices draft"],
    positions: Int[Array, " choices"],
    sampling: SamplingArrays,
    draft_ids: Int[Array, " draft"] | None,
    sharpness: float = SHARPNESS,
) -> tuple[Int[Array, " choices"], Float[Array, " choices"]]:
    """Return the token to draft at each position.

    Args:
        logits: The drafter's, float32.
        positions: Absolute position of each token to be drafted.
        sampling: How the target will choose it, one row for each choice.
        draft_ids: Target ids of the draft vocabulary; None for all.
        sharpness: What filtered logits are multiplied by before the noise is added; the larger, the
            more often the likeliest is drafted.

    Returns:
        Tokens, as target ids, and the logarithm of how likely the target chooses each. Of greedy
        sequences that is the drafter's probability, which is as often right as it says. Where noise
        is added, it is the softmax of what was maximized to the power `NOISY_ODDS`: noise makes
        wrong tokens stand out as much as right ones.
    """
    centered = logits - logits.max(axis=-1, keepdims=True)
    best, log_chance = _first_greatest(logits), _log_of_greatest(centered)

    def sample() -> tuple[Int[Array, " choices"], Float[Array, " choices"]]:
        warm = sampling.temperature > 0.0
        scaled = centered / jnp.where(warm, sampling.temperature, 1.0)[:, None]
        if draft_ids is None:
            noise = gumbel_noise(sampling.seed, positions, logits.shape[-1])
        else:
            noise = gumbel_noise_of(sampling.seed, positions, draft_ids)
        filtered = (sampling.top_k > 0) | (sampling.top_p < 1.0) | (sampling.min_p > 0.0)
        kept = jax.lax.cond(
            jnp.any(warm & filtered), lambda: filter_logits(scaled, sampling), lambda: scaled
        )
        noisy = sharpness * kept + noise
        noisy -= noisy.max(axis=-1, keepdims=True)
        return (
            jnp.where(warm, _first_greatest(noisy), best),
            jnp.where(warm, NOISY_ODDS * _log_of_greatest(noisy), log_chance),
        )

    # Nobody pays for noise and filters while all are greedy.
    index, log_chance = jax.lax.cond(
        jnp.any(sampling.temperature > 0.0), sample, lambda: (best, log_chance)
    )
    return (index if draft_ids is None else draft_ids[index]), log_chance


def _log_of_greatest(centered: Float[Array, "rows width"]) -> Float[Array, " rows"]:
    """Return the logarithm of the largest of each row's softmax; the largest is 0."""
    return -jnp.log(jnp.exp(centered).sum(axis=-1))


def _first_greatest(values: Float[Array, "rows width"]) -> Int[Array, " rows"]:
    """Return `argmax` of each row by operations that CPU computes several at a time."""
    width = values.shape[1]
    greatest = values == values.max(axis=1, keepdims=True)
    index = jnp.where(greatest, jnp.arange(width, dtype=jnp.int32)[None, :], width - 1)
    return index.min(axis=1)
