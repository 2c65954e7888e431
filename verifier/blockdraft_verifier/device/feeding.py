"""Tokens that a step takes from the step before, which the host has not read yet."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from blockdraft_models.words import Words
from blockdraft_verifier.device.buckets import Bucket


def chosen_by(row: int) -> int:
    """Name the token that a row of the step before has chosen, in the place of its number."""
    return -1 - row


def takes_chosen_tokens(words: Words, bucket: Bucket) -> bool:
    """Whether the words of a `StepInputs` name tokens by `chosen_by`; token numbers are first."""
    return bool((words[: bucket.tokens] < 0).any())


def lower_feed(
    bucket: Bucket, word_count: int, place: jax.sharding.Sharding | None
) -> jax.stages.Lowered:
    """Lower the program that puts the chosen tokens of a step into the words of the next.

    Both steps have the shape `bucket`.
    """

    def feed(words: Int[Array, " words"], bonus: Int[Array, " rows"]) -> Int[Array, " words"]:
        tokens = words[: bucket.tokens]
        chosen = bonus[jnp.maximum(chosen_by(0) - tokens, 0)]
        return words.at[: bucket.tokens].set(jnp.where(tokens < 0, chosen, tokens))

    def described(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count,), jnp.int32, sharding=place)

    return jax.jit(feed, out_shardings=place).lower(described(word_count), described(bucket.rows))
