"""The two computations of batched generation, each compiled whole.

Weights are arguments: as constants they would be compiled into every shape.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sampling import gumbel_noise
from blockdraft_training.generation.attention import LayerKV, PromptAttend, RowAttend

# What a row without an answer in the making puts out.
NO_TOKEN = -1


class RowState(NamedTuple):
    """How far each row is; lives on the device; a pytree.

    Attributes:
        token: The newest token: chosen, but not yet run through the target.
        position: Its position.
        remaining: Tokens that may still be chosen; 0 for a row that is finished or free.
        temperature: 0 for greedy.
        seed: The halves of the seed.
    """

    token: Int[Array, " rows"]
    position: Int[Array, " rows"]
    remaining: Int[Array, " rows"]
    temperature: Float[Array, " rows"]
    seed: UInt[Array, "rows 2"]


class RowPrompt(NamedTuple):
    """One prompt and the row it goes to; a pytree.

    Attributes:
        token_ids: The prompt, padded at its end.
        length: Tokens of the prompt.
        row: Which row it fills.
        max_tokens: Longest answer.
        temperature: 0 for greedy.
        seed: The halves of the seed.
    """

    token_ids: Int[Array, " padded"]
    length: Int[Array, ""]
    row: Int[Array, ""]
    max_tokens: Int[Array, ""]
    temperature: Float[Array, ""]
    seed: UInt[Array, "2"]


def free_rows(rows: int) -> RowState:
    """Return the state of `rows` rows that are all free."""
    # No buffer may be shared: the state is donated, and none can be given away twice.
    token, position, remaining = (jnp.zeros(rows, jnp.int32) for _ in range(3))
    return RowState(token, position, remaining, jnp.zeros(rows), jnp.zeros((rows, 2), jnp.uint32))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def start_row(
    graph: nnx.GraphDef[Decoder],
    weights: Any,
    caches: Sequence[LayerKV],
    rows: RowState,
    prompt: RowPrompt,
    end_ids: Int[Array, " ends"],
) -> tuple[list[LayerKV], RowState]:
    """Run a prompt and choose the first token of its answer.

    Args:
        graph: Of the target.
        weights: The target's.
        caches: One per layer; given away.
        rows: All rows; given away.
        prompt: The prompt; its row is overwritten.
        end_ids: Tokens that end an answer.

    Returns:
        Caches and rows with the new row in place.
    """
    decoder = nnx.merge(graph, weights)
    padded = prompt.token_ids.shape[0]
    positions = jnp.arange(padded, dtype=jnp.int32)
    attend = PromptAttend(prompt.row, padded)
    output = decoder(prompt.token_ids, positions, caches, attend)
    last = jax.lax.dynamic_slice_in_dim(output.hidden, prompt.length - 1, 1)
    first = choose(
        decoder.logits(last), prompt.length[None], prompt.temperature[None], prompt.seed[None]
    )
    remaining = jnp.where(_is_end(first, end_ids), 0, prompt.max_tokens - 1)
    new = (first[0], prompt.length, remaining[0], prompt.temperature, prompt.seed)
    placed = (old.at[prompt.row].set(value) for old, value in zip(rows, new, strict=True))
    return output.caches, RowState(*placed)


@functools.partial(jax.jit, static_argnums=0, static_argnames="steps", donate_argnums=(2, 3))
def continue_rows(
    graph: nnx.GraphDef[Decoder],
    weights: Any,
    caches: Sequence[LayerKV],
    rows: RowState,
    end_ids: Int[Array, " ends"],
    *,
    steps: int,
) -> tuple[list[LayerKV], RowState, Int[Array, "steps_and_start rows"]]:
    """Choose the next tokens of every row, up to `steps` of each.

    Args:
        graph: Of the target.
        weights: The target's.
        caches: One per layer; given away.
        rows: All rows; given away.
        end_ids: Tokens that end an answer.
        steps: Tokens per row; a loop on the device, so that the host is asked once for all.

    Returns:
        Caches, rows, and the tokens: first each row's newest token before the steps, then what
        every step chose, `NO_TOKEN` where a row had finished.
    """
    decoder = nnx.merge(graph, weights)

    def step(carry: tuple[Any, RowState], _: None) -> tuple[tuple[Any, RowState], Array]:
        caches, rows = carry
        live = rows.remaining > 0
        # A finished row repeats position 0: it must neither run off nor lengthen the context.
        position = jnp.where(live, rows.position, 0)
        output = decoder(rows.token, position, caches, RowAttend(position))
        temperature = jnp.where(live, rows.temperature, 0.0)
        chosen = choose(decoder.logits(output.hidden), position + 1, temperature, rows.seed)
        remaining = jnp.where(_is_end(chosen, end_ids), 0, rows.remaining - 1)
        after = RowState(
            jnp.where(live, chosen, rows.token),
            position + 1,
            jnp.where(live, remaining, 0),
            rows.temperature,
            rows.seed,
        )
        return (output.caches, after), jnp.where(live, chosen, NO_TOKEN)

    start = rows.token
    (caches, rows), chosen = jax.lax.scan(step, (list(caches), rows), None, length=steps)
    return list(caches), rows, jnp.concatenate([start[None], chosen])


def choose(
    logits: Float[Array, "rows vocab"],
    position: Int[Array, " rows"],
    temperature: Float[Array, " rows"],
    seed: UInt[Array, "rows 2"],
) -> Int[Array, " rows"]:
    """Return `argmax(logits / temperature + gumbel(seed, position))`, plain argmax at 0.

    This is the choice that serving makes of a request with the same seed and temperature.

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
        scaled = centered / jnp.where(warm, temperature, 1.0)[:, None]
        noisy = scaled + gumbel_noise(seed, position, logits.shape[-1])
        return jnp.where(warm, jnp.argmax(noisy, axis=-1).astype(jnp.int32), greedy)

    # Noise for a whole vocabulary costs more than the head on CPU: none for an all-greedy batch.
    chosen: Int[Array, " rows"] = jax.lax.cond(jnp.any(temperature > 0.0), sample, lambda: greedy)
    return chosen


def _is_end(tokens: Int[Array, " tokens"], end_ids: Int[Array, " ends"]) -> Bool[Array, " tokens"]:
    return jnp.any(tokens[:, None] == end_ids[None, :], axis=1)
