"""The noise by which tokens are sampled, a function of seed and position alone (docs/adr/0003).

Serving and the making of corpora choose with the same noise, so an answer can be made again by
itself, and the service gives it too when asked with the same seed and temperature.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

SEED_BITS = 64


def seed_words(seed: int) -> UInt[np.ndarray, "2"]:
    """Return the low and the high half of a seed, as `gumbel_noise` takes it.

    Raises:
        ValueError: If the seed is negative or has more than 64 bits.
    """
    if not 0 <= seed < 1 << SEED_BITS:
        raise ValueError(f"a seed must be from 0 to 2**{SEED_BITS} - 1, got {seed}")
    return np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)


def gumbel_noise(
    seed: UInt[Array, "choices 2"], position: Int[Array, " choices"], vocab_size: int
) -> Float[Array, "choices vocab"]:
    """Return standard Gumbel noise for the choice of the token at each position.

    Args:
        seed: The halves of each seed.
        position: Absolute position of each token to be chosen.
        vocab_size: Tokens to choose from.
    """

    def noise(words: UInt[Array, "2"], at: Int[Array, ""]) -> Float[Array, " vocab"]:
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        return jax.random.gumbel(jax.random.fold_in(key, at), (vocab_size,), jnp.float32)

    return jax.vmap(noise)(seed, position)


def gumbel_noise_of(
    seed: UInt[Array, "choices 2"], position: Int[Array, " choices"], token_ids: Int[Array, " some"]
) -> Float[Array, "choices some"]:
    """Return `gumbel_noise` of some tokens, without computing that of the others.

    Args:
        seed: The halves of each seed.
        position: Absolute position of each token to be chosen.
        token_ids: The tokens, as ids of the whole vocabulary.
    """

    def noise(words: UInt[Array, "2"], at: Int[Array, ""]) -> Float[Array, " some"]:
        key = jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), at)
        # Partitionable threefry enciphers the index of an element, as folding it in does, and
        # makes 32 random bits of the two words that come out. The rest is `jax.random.gumbel`.
        words = jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(key, token_ids))
        mantissa = (words[:, 0] ^ words[:, 1]) >> jnp.uint32(9)
        one = jnp.uint32(0x3F800000)
        uniform = jax.lax.bitcast_convert_type(mantissa | one, jnp.float32) - 1.0
        return -jnp.log(-jnp.log(jnp.maximum(uniform, np.finfo(np.float32).tiny)))

    return jax.vmap(noise)(seed, position)
