"""Biases, masks and penalties: what a request changes of the target's logits before it chooses.

They depend on the tokens before a position, the drafted ones included, and on nothing else. So a
drafted token is accepted exactly when plain decoding would have chosen it. The order is vLLM's:
biases, masks, the repetition penalty (Keskar et al. 2019, section 4.1), then the frequency and the
presence penalty as OpenAI documents them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from blockdraft_verifier.device.packing import StepInputs
from blockdraft_verifier.device.token_limits import MASK_BITS, TokenLimits

# Positions of each row whose tokens are counted at a time.
_CHUNK_TOKENS = 256


def process_logits(
    logits: Float[Array, "choices vocab"],
    inputs: StepInputs,
    limits: TokenLimits,
    page_tokens: Int[Array, "pages page_size"],
    max_drafts: int,
) -> Float[Array, "choices vocab"]:
    """Return the logits that tokens are chosen from; `page_tokens` are those in the cache.

    Rules that a row does not have leave its logits as they are, to the bit.
    """
    biased = bias_logits(logits, inputs, limits)
    return _penalize(mask_logits(biased, limits), inputs, page_tokens, max_drafts)


def bias_logits(
    logits: Float[Array, "choices vocab"], inputs: StepInputs, limits: TokenLimits
) -> Float[Array, "choices vocab"]:
    """Return the logits with the biases of each choice's row."""
    return logits + _biases(limits, logits.shape[-1])[inputs.choice_row]


def mask_logits(
    logits: Float[Array, "choices vocab"], limits: TokenLimits
) -> Float[Array, "choices vocab"]:
    """Return the logits with those of forbidden tokens at minus infinity."""
    return jnp.where(_bits(limits.allowed, logits.shape[-1]), logits, -jnp.inf)


def _biases(limits: TokenLimits, vocab_size: int) -> Float[Array, "rows vocab"]:
    every_row = jnp.arange(limits.bias.shape[0], dtype=jnp.int32)[:, None]
    bias = jnp.zeros((limits.bias.shape[0], vocab_size), jnp.float32)
    return bias.at[every_row, limits.bias_ids].add(limits.bias, mode="drop")


def _penalize(
    logits: Float[Array, "choices vocab"],
    inputs: StepInputs,
    page_tokens: Int[Array, "pages page_size"],
    max_drafts: int,
) -> Float[Array, "choices vocab"]:
    vocab_size, row = logits.shape[-1], inputs.choice_row
    counts = _count_tokens(inputs, page_tokens, vocab_size)
    in_prompt, in_output = counts[row, 0], counts[row, 1]
    # The token that a choice follows, and those before it back to the first drafted one.
    back = jnp.arange(max_drafts, dtype=jnp.int32)[None, :]
    every_choice = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    drafted = every_choice - inputs.first_choice[row][:, None]
    ids = inputs.token_ids[jnp.maximum(inputs.choice_token[:, None] - back, 0)]
    ids = jnp.where(back < drafted, ids, vocab_size)
    in_output = in_output.at[every_choice, ids].add(1, mode="drop")

    _, repetition, frequency, presence = (column[row][:, None] for column in inputs.penalties)
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where((in_prompt > 0) | (in_output > 0), repeated, logits)
    penalty = frequency * in_output.astype(jnp.float32) + jnp.where(in_output > 0, presence, 0.0)
    return logits - penalty


def _count_tokens(
    inputs: StepInputs, page_tokens: Int[Array, "pages page_size"], vocab_size: int
) -> Int[Array, "rows 2 vocab"]:
    """Return how often each token is in each row's prompt, and how often in its output.

    Drafted tokens are not counted, nor are those of rows without penalties.
    """
    batch, (prompt_tokens, repetition, frequency, presence) = inputs.batch, inputs.penalties
    page_size = page_tokens.shape[1]
    penalized = (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)
    lengths = jnp.where(penalized, batch.context_lengths - inputs.draft_count, 0)[:, None]
    every_row = jnp.arange(lengths.shape[0], dtype=jnp.int32)[:, None]

    def add(chunk: Int[Array, ""], counts: Array) -> Array:
        position = chunk * _CHUNK_TOKENS + jnp.arange(_CHUNK_TOKENS, dtype=jnp.int32)[None, :]
        page = jnp.minimum(position // page_size, batch.page_table.shape[1] - 1)
        ids = page_tokens[batch.page_table[every_row, page], position % page_size]
        ids = jnp.where(position < lengths, ids, vocab_size)
        part = (position >= prompt_tokens[:, None]).astype(jnp.int32)
        return counts.at[every_row, part, ids].add(1, mode="drop")

    counts = jnp.zeros((lengths.shape[0], 2, vocab_size), jnp.int32)
    # As many chunks as the longest row has: work grows with use, shapes do not.
    chunks = -(-lengths.max() // _CHUNK_TOKENS)
    counted: Int[Array, "rows 2 vocab"] = jax.lax.fori_loop(0, chunks, add, counts)
    return counted


def _bits(words: UInt[Array, "choices words"], vocab_size: int) -> Bool[Array, "choices vocab"]:
    places = jnp.arange(MASK_BITS, dtype=jnp.uint32)[None, None, :]
    bits = (words[:, :, None] >> places) & jnp.uint32(1)
    allowed: Bool[Array, "choices vocab"] = bits.reshape(words.shape[0], -1)[:, :vocab_size] == 1
    return allowed
