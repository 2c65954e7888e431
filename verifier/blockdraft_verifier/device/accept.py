"""The target's choice at each position, and the drafted tokens that agree with it.

Glossary:

* **choice**: the target's own token at a position. It is
  `argmax(filtered(logits / temperature) + gumbel(seed, position))`, plain argmax at temperature
  0. Adding Gumbel noise and taking the argmax draws from the softmax of the filtered logits
  (Gumbel 1954; Maddison et al. 2014).
* **accepted**: leading drafted tokens that equal the choices.
* **bonus**: the choice after the last accepted token; it becomes the next anchor.

The Gumbel noise depends on the request's seed and the absolute position only. A drafted token is
accepted exactly when plain decoding would have produced it, so speculation changes nothing, at any
temperature.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from blockdraft_models.decoder.products import log_share_sums
from blockdraft_models.decoder.sampling import (
    SamplingArrays,
    filter_logits,
    first_greatest,
    gumbel_noise,
)
from blockdraft_models.sampling_options import MAX_LOG_PROBS


def choose_tokens(
    logits: Float[Array, "choices vocab"],
    position: Int[Array, " choices"],
    row: Int[Array, " choices"],
    sampling: SamplingArrays,
) -> Int[Array, " choices"]:
    """Return the target's choice at each absolute position, its options being those of `row`."""
    greedy = first_greatest(logits)

    def sample() -> Int[Array, " choices"]:
        options = SamplingArrays(*(option[row] for option in sampling))
        warm = options.temperature > 0.0
        # The likeliest becomes 0: over a tiny temperature it would be infinite otherwise.
        centered = logits - logits.max(axis=-1, keepdims=True)
        scaled = centered / jnp.where(warm, options.temperature, 1.0)[:, None]
        noise = gumbel_noise(options.seed, position, jnp.arange(logits.shape[-1]))
        return jnp.where(warm, first_greatest(filter_logits(scaled, options) + noise), greedy)

    # Gumbel noise and filters cost more than the LM head on CPU: a greedy batch skips them.
    choices: Int[Array, " choices"] = jax.lax.cond(
        jnp.any(sampling.temperature > 0.0), sample, lambda: greedy
    )
    return choices


def count_accepted(
    choices: Int[Array, " choices"],
    next_tokens: Int[Array, " choices"],
    first_choice: Int[Array, " rows"],
    draft_count: Int[Array, " rows"],
    max_drafts: int,
) -> tuple[Int[Array, " rows"], Int[Array, " rows"]]:
    """Return each row's accepted count and bonus token.

    `next_tokens` are the tokens drafted in the places of `choices`. Each row's begin at its
    `first_choice`. No row has more than `max_drafts` drafted tokens.
    """
    offset = jnp.arange(max_drafts, dtype=jnp.int32)
    index = jnp.minimum(first_choice[:, None] + offset[None, :], choices.shape[0] - 1)
    right = (choices[index] == next_tokens[index]) & (offset[None, :] < draft_count[:, None])
    accepted = jnp.cumprod(right.astype(jnp.int32), axis=1).sum(axis=1)
    bonus = choices[jnp.minimum(first_choice + accepted, choices.shape[0] - 1)]
    return accepted, bonus


class LogProbs(NamedTuple):
    """Log probabilities of one token and the likeliest ones, before temperature and filters."""

    chosen: Float[Array, " choices"]
    top_ids: Int[Array, "choices top"]
    top: Float[Array, "choices top"]


def log_probabilities(
    logits: Float[Array, "choices vocab"],
    tokens: Int[Array, " choices"],
    log_probs_wanted: Bool[Array, ""],
) -> LogProbs:
    """Return the log probabilities of `tokens`, or zeros if not wanted (top-k is slow on CPU)."""
    count = min(MAX_LOG_PROBS, logits.shape[-1])

    def compute() -> LogProbs:
        centered = logits - logits.max(axis=-1, keepdims=True)
        values = centered - log_share_sums(jnp.exp(centered))[:, None]
        top, ids = jax.lax.top_k(values, count)
        chosen = jnp.take_along_axis(values, tokens[:, None], axis=1)[:, 0]
        return LogProbs(chosen, ids.astype(jnp.int32), top)

    def skip() -> LogProbs:
        shape = (logits.shape[0], count)
        zeros = jnp.zeros(shape, jnp.float32)
        return LogProbs(zeros[:, 0], jnp.zeros(shape, jnp.int32), zeros)

    log_probs: LogProbs = jax.lax.cond(log_probs_wanted, compute, skip)
    return log_probs
