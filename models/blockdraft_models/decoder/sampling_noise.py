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
