"""Which token follows: the same choice that serving makes for the same seed and position."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt

SEED_BITS = 64


def seed_words(seed: int) -> tuple[int, int]:
    """Return the low and the high half of a seed, as `choose` takes it.

    Raises:
        ValueError: If the seed is negative or has more than 64 bits.
    """
    if not 0 <= seed < 1 << SEED_BITS:
        raise ValueError(f"a seed must be from 0 to 2**{SEED_BITS} - 1, got {seed}")
    return seed & 0xFFFFFFFF, seed >> 32


def choose(
    logits: Float[Array, "rows vocab"],
    position: Int[Array, " rows"],
    temperature: Float[Array, " rows"],
    seed: UInt[Array, "rows 2"],
) -> Int[Array, " rows"]:
    """Return `argmax(logits / temperature + gumbel(seed, position))`, plain argmax at 0.

    The noise depends on seed and position alone (docs/adr/0003), so an answer can be made again
    by itself, and the service gives it too when asked with the row's seed and temperature.

    Args:
        logits: float32.
        position: Absolute position of the token to be chosen.
        temperature: 0 for greedy.
        seed: The halves of each row's seed.
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def sample() -> Int[Array, " rows"]:
        warm = temperature > 0.0
        # The likeliest becomes 0: over a tiny temperature it would be infinite otherwise.
        centered = logits - logits.max(axis=-1, keepdims=True)
        noise = jax.vmap(_gumbel, in_axes=(0, 0, None))(seed, position, logits.shape[-1])
        noisy = centered / jnp.where(warm, temperature, 1.0)[:, None] + noise
        return jnp.where(warm, jnp.argmax(noisy, axis=-1).astype(jnp.int32), greedy)

    # Noise for a whole vocabulary costs more than the head on CPU: none for an all-greedy batch.
    chosen: Int[Array, " rows"] = jax.lax.cond(jnp.any(temperature > 0.0), sample, lambda: greedy)
    return chosen


def _gumbel(
    words: UInt[Array, "2"], position: Int[Array, ""], vocab_size: int
) -> Float[Array, " vocab"]:
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    return jax.random.gumbel(jax.random.fold_in(key, position), (vocab_size,), jnp.float32)
