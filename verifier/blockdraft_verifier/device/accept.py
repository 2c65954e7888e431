"""What the target chooses at each position, and how much of a proposal agrees with it.

Glossary:

* **choice**: the target's own token at a position. It is
  `argmax(filtered(logits / temperature) + gumbel(seed, position))`, plain argmax at temperature
  0. Adding Gumbel noise and taking the argmax draws from the softmax of the filtered logits
  (Gumbel 1954; Maddison et al. 2014).
* **accepted**: leading drafted tokens that equal the choices.
* **bonus**: the choice after the last accepted token; it becomes the next anchor.

The noise depends on the request's seed and the absolute position only. A drafted token is accepted
exactly when plain decoding would have produced it, so speculation changes nothing, at any
temperature.

The filters keep whole sets of equal logits and are computed by bisection on the logits' bits, not
by sorting: a sort of the vocabulary per position is slow on every platform.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from blockdraft_models.decoder.row_sums import log_row_sums, row_sums
from blockdraft_models.decoder.sampling_noise import gumbel_noise

MAX_LOG_PROBS = 20
PROBABILITY_STEPS = 2**30
"""Probabilities are added up as multiples of one over this number."""


class SamplingArrays(NamedTuple):
    """Sampling options of each row of a batch; see `sequence.Sampling`.

    Attributes:
        temperature: 0 for greedy.
        top_k: 0 for all.
        top_p: 1 for all.
        min_p: 0 for all.
        seed: The low and the high half of the seed.
    """

    temperature: Float[Array, " rows"]
    top_k: Int[Array, " rows"]
    top_p: Float[Array, " rows"]
    min_p: Float[Array, " rows"]
    seed: UInt[Array, "rows 2"]


def choose_tokens(
    logits: Float[Array, "choices vocab"],
    position: Int[Array, " choices"],
    row: Int[Array, " choices"],
    sampling: SamplingArrays,
) -> Int[Array, " choices"]:
    """Return the target's choice at each position.

    Args:
        logits: float32 logits, one line per choice.
        position: Absolute position of the token to be chosen.
        row: The row of `sampling` each choice belongs to.
        sampling: Options of each row.
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def sample() -> Int[Array, " choices"]:
        options = SamplingArrays(*(option[row] for option in sampling))
        warm = options.temperature > 0.0
        # The likeliest becomes 0: over a tiny temperature it would be infinite otherwise.
        centered = logits - logits.max(axis=-1, keepdims=True)
        scaled = centered / jnp.where(warm, options.temperature, 1.0)[:, None]
        kept = filter_logits(scaled, options)
        noisy = kept + gumbel_noise(options.seed, position, logits.shape[-1])
        return jnp.where(warm, jnp.argmax(noisy, axis=-1).astype(jnp.int32), greedy)

    # Noise and filters cost more than the LM head on CPU: skip them for an all-greedy batch.
    choices: Int[Array, " choices"] = jax.lax.cond(
        jnp.any(sampling.temperature > 0.0), sample, lambda: greedy
    )
    return choices


def filter_logits(
    logits: Float[Array, "choices vocab"], options: SamplingArrays
) -> Float[Array, "choices vocab"]:
    """Return `logits` with -inf where top_k, then top_p of the rest, then min_p drop a token.

    Args:
        logits: Logits after division by the temperature.
        options: One row per choice.
    """
    vocab_size = logits.shape[-1]
    order = _ordered_bits(logits)
    top_k = jnp.where(options.top_k > 0, options.top_k, vocab_size)
    kth = _largest_threshold(order, lambda kept: kept.sum(axis=-1) >= top_k)
    logits = jnp.where(order >= kth[:, None], logits, -jnp.inf)

    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = weights / row_sums(weights)[:, None]
    # Whole numbers have the same sum in any order, so no shape of a step cuts elsewhere.
    shares = jnp.round(probabilities * PROBABILITY_STEPS).astype(jnp.int32)
    wanted = jnp.round(options.top_p * PROBABILITY_STEPS).astype(jnp.int32)
    nucleus = _largest_threshold(
        order, lambda kept: jnp.where(kept, shares, 0).sum(axis=-1) >= wanted
    )
    # Rounding may leave the whole sum under top_p = 1; then everything stays.
    whole = options.top_p >= 1.0
    keep = whole[:, None] | (order >= nucleus[:, None])
    keep &= probabilities >= options.min_p[:, None] * probabilities.max(axis=-1, keepdims=True)
    return jnp.where(keep, logits, -jnp.inf)


def _ordered_bits(values: Float[Array, "choices vocab"]) -> Int[Array, "choices vocab"]:
    """Return integers ordered like the floats."""
    bits = jax.lax.bitcast_convert_type(values, jnp.int32)
    # Negative floats order backwards as integers: flip all bits but the sign.
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _largest_threshold(
    order: Int[Array, "choices vocab"],
    enough: Callable[[Bool[Array, "choices vocab"]], Bool[Array, " choices"]],
) -> Int[Array, " choices"]:
    """Return the largest t for which the set `order >= t` is `enough`, by bisection.

    `enough` must hold for the whole vocabulary, or the smallest integer is returned, which keeps
    it whole.
    """

    def halve(_: Int[Array, ""], bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        # The mean without overflow, rounded up.
        middle = (low >> 1) + (high >> 1) + ((low | high) & 1)
        fits = enough(order >= middle[:, None])
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle - 1)

    low = jnp.full(order.shape[:1], -(2**31), jnp.int32)
    threshold: Int[Array, " choices"]
    threshold, _ = jax.lax.fori_loop(0, 32, halve, (low, order.max(axis=-1)))
    return threshold


def count_accepted(
    choices: Int[Array, " choices"],
    next_tokens: Int[Array, " choices"],
    first_choice: Int[Array, " rows"],
    draft_count: Int[Array, " rows"],
    max_drafts: int,
) -> tuple[Int[Array, " rows"], Int[Array, " rows"]]:
    """Compare each row's drafted tokens with the target's choices.

    Args:
        choices: The target's choice after each token that has one.
        next_tokens: The drafted token that follows the same token, anything where none does.
        first_choice: Index in `choices` of each row's first one.
        draft_count: Drafted tokens of each row.
        max_drafts: Most drafted tokens of any row; static.

    Returns:
        The accepted count and the bonus token of each row.
    """
    offset = jnp.arange(max_drafts, dtype=jnp.int32)
    index = jnp.minimum(first_choice[:, None] + offset[None, :], choices.shape[0] - 1)
    right = (choices[index] == next_tokens[index]) & (offset[None, :] < draft_count[:, None])
    accepted = jnp.cumprod(right.astype(jnp.int32), axis=1).sum(axis=1)
    bonus = choices[jnp.minimum(first_choice + accepted, choices.shape[0] - 1)]
    return accepted, bonus


class LogProbs(NamedTuple):
    """Log probabilities of the target's own distribution, before temperature and filters.

    Attributes:
        chosen: Of the target's choice.
        top_ids: The likeliest tokens, likeliest first.
        top: Their log probabilities.
    """

    chosen: Float[Array, " choices"]
    top_ids: Int[Array, "choices top"]
    top: Float[Array, "choices top"]


def log_probabilities(
    logits: Float[Array, "choices vocab"],
    choices: Int[Array, " choices"],
    wanted: Bool[Array, ""],
) -> LogProbs:
    """Return log probabilities, or zeros when nobody wants them (top-k is slow on CPU)."""
    count = min(MAX_LOG_PROBS, logits.shape[-1])

    def compute() -> LogProbs:
        centered = logits - logits.max(axis=-1, keepdims=True)
        values = centered - log_row_sums(jnp.exp(centered))[:, None]
        top, ids = jax.lax.top_k(values, count)
        chosen = jnp.take_along_axis(values, choices[:, None], axis=1)[:, 0]
        return LogProbs(chosen, ids.astype(jnp.int32), top)

    def skip() -> LogProbs:
        shape = (logits.shape[0], count)
        zeros = jnp.zeros(shape, jnp.float32)
        return LogProbs(zeros[:, 0], jnp.zeros(shape, jnp.int32), zeros)

    log_probs: LogProbs = jax.lax.cond(wanted, compute, skip)
    return log_probs
