"""Sampling of tokens: by Gumbel noise of seed and position, among those that filters leave.

Serving and corpora use the same Gumbel noise, so that the service repeats a corpus's completion
when it gets the same seed and temperature (docs/adr/0003).
Target and drafter use the same filters: top-k, then top-p of the rest, then min-p. These keep or
drop equal logits together. They are computed by bisection on the logits' bits, not by sorting: a
sort of the vocabulary per position is slow on every platform (docs/adr/0008).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from blockdraft_models.decoder.products import share_sums
from blockdraft_models.platform import by_platform
from blockdraft_models.sampling_options import GREEDY, Sampling

_SEED_BITS = 64
# Probabilities are added up as multiples of one over this number.
_PROBABILITY_STEPS = 2**30
_LEAST = -(2**31)
# Bits by which the rounds of Threefry-2x32 rotate.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


class SamplingArrays(NamedTuple):
    """Sampling options of each row of a batch."""

    temperature: Float[Array, " rows"]  # 0 for greedy
    top_k: Int[Array, " rows"]  # 0 for all
    top_p: Float[Array, " rows"]  # 1 for all
    min_p: Float[Array, " rows"]  # 0 for all
    seed: UInt[Array, "rows 2"]  # the low and the high half of the seed


def pack_sampling(options: Sequence[Sampling], size: int) -> SamplingArrays:
    """Return the sampling options of each row in NumPy arrays, padded with greedy ones to `size`.

    A negative seed counts by its low 64 bits.
    """
    padded = [*options, *[GREEDY] * (size - len(options))]

    def column(name: str, dtype: type[np.generic]) -> Any:
        return np.array([getattr(option, name) for option in padded], dtype)

    seeds = np.array([option.seed & (2**_SEED_BITS - 1) for option in padded], "<u8")
    halves: Any = seeds.view("<u4").reshape(-1, 2)
    return SamplingArrays(
        temperature=column("temperature", np.float32),
        top_k=column("top_k", np.int32),
        top_p=column("top_p", np.float32),
        min_p=column("min_p", np.float32),
        seed=halves,
    )


def seed_words(seed: int) -> UInt[np.ndarray, "2"]:
    """Return the low and the high half of a seed, as `gumbel_noise` takes it."""
    if not 0 <= seed < 1 << _SEED_BITS:
        raise ValueError(f"a seed must be from 0 to 2**{_SEED_BITS} - 1, got {seed}")
    return np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)


def gumbel_noise(
    seed: UInt[Array, "choices 2"], position: Int[Array, " choices"], token_ids: Int[Array, " some"]
) -> Float[Array, "choices some"]:
    """Return standard Gumbel noise of some tokens, for the choice at each absolute position.

    Its bits are those of `jax.random.gumbel` for the seed's threefry key with the position folded
    in, where `jax_threefry_partitionable` is set: the random bits of a token are its id,
    enciphered. On CPU, JAX itself takes up to three times as long, since it loops over the rounds
    with all tokens.
    """
    first, second = _threefry(seed[:, 0], seed[:, 1], position.astype(jnp.uint32))
    words = _threefry(first[:, None], second[:, None], token_ids.astype(jnp.uint32)[None, :])
    one_bits = jnp.uint32(0x3F800000)
    mantissa = (words[0] ^ words[1]) >> jnp.uint32(9)
    uniform = jax.lax.bitcast_convert_type(mantissa | one_bits, jnp.float32) - 1.0
    return -jnp.log(-jnp.log(jnp.maximum(uniform, np.finfo(np.float32).tiny)))


def _threefry(
    first: UInt[Array, "*keys"], second: UInt[Array, "*keys"], count: UInt[Array, "*counts"]
) -> tuple[Array, Array]:
    """Encipher counts of 32 bits under keys of two words, by Threefry-2x32 of 20 rounds.

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011).
    """
    keys = first, second, first ^ second ^ jnp.uint32(0x1BD11BDA)
    left, right = keys[0], count + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left += right
            right = (right << rotation | right >> 32 - rotation) ^ left
        left += keys[(group + 1) % 3]
        right += keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return left, right


def filter_logits(
    logits: Float[Array, "choices vocab"], options: SamplingArrays
) -> Float[Array, "choices vocab"]:
    """Return logits, already divided by the temperature, with -inf where a filter drops a token."""
    filters = (options.top_k > 0) | (options.top_p < 1.0) | (options.min_p > 0.0)
    filtered: Float[Array, "choices vocab"] = jax.lax.cond(
        jnp.any(filters), lambda: _filtered(logits, options), lambda: logits
    )
    return filtered


def first_greatest(values: Float[Array, "rows width"]) -> Int[Array, " rows"]:
    """Return the `argmax` of each row, by operations that a CPU vectorizes."""
    index: Int[Array, " rows"] = by_platform(
        values, cpu=_first_greatest_by_blocks, default=_first_greatest_at_once
    )
    return index


def _first_greatest_at_once(values: Float[Array, "rows width"]) -> Int[Array, " rows"]:
    width = values.shape[1]
    greatest = values == values.max(axis=1, keepdims=True)
    index = jnp.where(greatest, jnp.arange(width, dtype=jnp.int32)[None, :], width - 1)
    return index.min(axis=1)


def _first_greatest_by_blocks(values: Float[Array, "rows width"]) -> Int[Array, " rows"]:
    """Return the same; read all values once, and again only the first block with the greatest."""
    rows, width = values.shape
    # About as many blocks as there are values in one, if the width can be divided so.
    size = next(size for size in range(2 * math.isqrt(width), 0, -1) if width % size == 0)
    blocks = values.reshape(rows, width // size, size)
    first = _first_greatest_at_once(blocks.max(axis=2))
    block = jnp.take_along_axis(blocks, first[:, None, None], axis=1)[:, 0]
    return first * size + _first_greatest_at_once(block)


def _filtered(
    logits: Float[Array, "choices vocab"], options: SamplingArrays
) -> Float[Array, "choices vocab"]:
    vocab_size = logits.shape[-1]
    order = _ordered_bits(logits)
    top_k = jnp.where(options.top_k > 0, options.top_k, vocab_size)
    # A threshold that no row needs is not searched for: the search takes most of the time.
    everything = jnp.full(order.shape[:1], _LEAST, jnp.int32)
    kth = jax.lax.cond(
        jnp.any(options.top_k > 0),
        lambda: _largest_threshold(order, lambda mask: mask.sum(axis=-1) >= top_k),
        lambda: everything,
    )
    logits = jnp.where(order >= kth[:, None], logits, -jnp.inf)

    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = weights / share_sums(weights)[:, None]
    # Whole numbers have the same sum in any order, so every shape of a step cuts at the same place.
    shares = jnp.round(probabilities * _PROBABILITY_STEPS).astype(jnp.int32)
    nucleus_shares = jnp.round(options.top_p * _PROBABILITY_STEPS).astype(jnp.int32)
    # Rounding may leave the whole sum under top_p = 1; then everything stays.
    whole = options.top_p >= 1.0
    nucleus = jax.lax.cond(
        jnp.all(whole),
        lambda: everything,
        lambda: _largest_threshold(
            order, lambda mask: jnp.where(mask, shares, 0).sum(axis=-1) >= nucleus_shares
        ),
    )
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

    low = jnp.full(order.shape[:1], _LEAST, jnp.int32)
    threshold: Int[Array, " choices"]
    threshold, _ = jax.lax.fori_loop(0, 32, halve, (low, order.max(axis=-1)))
    return threshold
