"""The choices of a step that denoises, and their probabilities."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.products import share_sums
from blockdraft_models.decoder.sampling import (
    SamplingArrays,
    filter_logits,
    first_greatest,
    gumbel_noise,
)


def denoise(
    logits: Float[Array, "choices vocab"],
    position: Int[Array, " choices"],
    row: Int[Array, " choices"],
    sampling: SamplingArrays,
    mask_token_id: int,
) -> tuple[Int[Array, " choices"], Float[Array, " choices"]]:
    """Return the choice at each position, and its probability under the request's options.

    At temperature 0 it is the likeliest token, and its probability that at temperature 1. The mask
    is never chosen.
    """
    options = SamplingArrays(*(option[row] for option in sampling))
    warm = (options.temperature > 0.0)[:, None]
    logits = logits.at[:, mask_token_id].set(-jnp.inf)
    centered = logits - logits.max(axis=-1, keepdims=True)
    scaled = centered / jnp.where(warm, options.temperature[:, None], 1.0)
    left = jnp.where(warm, filter_logits(scaled, options), centered)
    noise = gumbel_noise(options.seed, position, jnp.arange(logits.shape[-1]))
    choices = first_greatest(jnp.where(warm, left + noise, left))
    weights = jnp.exp(left)
    chosen = jnp.take_along_axis(weights, choices[:, None], axis=1)[:, 0]
    return choices, chosen / share_sums(weights)
