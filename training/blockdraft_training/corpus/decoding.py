"""The two computations of batched generation, each compiled whole, over a dense KV cache.

Weights are arguments: as constants they would be compiled into every shape. A row of the cache
belongs to one completion at a time; whatever a previous one left behind its end is overwritten
before it is seen. The layout is the one in which XLA's CPU backend multiplies fastest: keys by
their elements, values by their positions, and always a whole array, for a slice of one is copied
before it is multiplied. That the whole capacity is read costs little: of many rows there is nearly
always one that is near its end.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int, UInt

from blockdraft_models.decoder.attention import EVERYTHING, DenseAttend, Reach, softmax
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sampling import first_greatest, gumbel_noise

# The output of a row without a completion in the making.
NO_TOKEN = -1


class DenseLayerKV(NamedTuple):
    """Keys and values of one layer in the dense KV cache; a pytree."""

    keys: Array  # Float[Array, "rows kv_heads head_dim capacity"], normalized and rotated
    values: Array  # Float[Array, "rows kv_heads capacity head_dim"]


class RowState(NamedTuple):
    """The progress of each row, on the device; a pytree."""

    token: Int[Array, " rows"]  # the newest token: chosen, but not yet run through the target
    position: Int[Array, " rows"]  # its position
    # Tokens that may still be chosen; 0 for a row that is finished or free.
    remaining: Int[Array, " rows"]
    temperature: Float[Array, " rows"]  # 0 for greedy
    seed: UInt[Array, "rows 2"]  # the halves of the seed


class RowPrompts(NamedTuple):
    """Prompts, padded at their ends, and the rows they go to; a pytree."""

    token_ids: Int[Array, "prompts padded"]
    length: Int[Array, " prompts"]
    row: Int[Array, " prompts"]  # beyond the last row: the prompt is padding itself
    max_tokens: Int[Array, " prompts"]
    temperature: Float[Array, " prompts"]
    seed: UInt[Array, "prompts 2"]


def allocate(
    config: DecoderConfig, *, rows: int, capacity: int, dtype: DTypeLike
) -> Sequence[DenseLayerKV]:
    """Return an empty cache of so many positions for every layer with keys."""
    caches = []
    for layer in map(config.of_layer, range(config.kv_layers)):
        keys = (rows, layer.num_kv_heads, layer.head_dim, capacity)
        values = (rows, layer.num_kv_heads, capacity, layer.head_dim)
        caches.append(DenseLayerKV(jnp.zeros(keys, dtype), jnp.zeros(values, dtype)))
    return caches


def free_rows(rows: int) -> RowState:
    """Return the state of `rows` rows that are all free."""
    # No buffer may be shared: the state is donated, and no buffer can be donated twice.
    token, position, remaining = (jnp.zeros(rows, jnp.int32) for _ in range(3))
    return RowState(token, position, remaining, jnp.zeros(rows), jnp.zeros((rows, 2), jnp.uint32))


@dataclass(frozen=True, slots=True)
class PromptsAttend:
    """Attention of padded prompts, each of which fills a row from its start; an `Attend`."""

    rows: Int[Array, " prompts"]
    length: int

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: DenseLayerKV,
        reach: Reach = EVERYTHING,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], DenseLayerKV]:
        """Attend within each prompt and store its keys and values, padding included."""
        prompts = len(self.rows)
        attended, _ = DenseAttend(prompts, self.length)(q, k, v, cache, reach)
        keys, values = (part.reshape(prompts, self.length, *part.shape[1:]) for part in (k, v))
        end = self.length
        return attended, DenseLayerKV(
            cache.keys.at[self.rows, :, :, :end].set(
                keys.transpose(0, 2, 3, 1).astype(cache.keys.dtype), mode="drop"
            ),
            cache.values.at[self.rows, :, :end].set(
                values.transpose(0, 2, 1, 3).astype(cache.values.dtype), mode="drop"
            ),
        )


@dataclass(frozen=True, slots=True)
class RowAttend:
    """Attention of the newest token of every row, at its position, over its row; an `Attend`.

    Masked positions add exactly nothing, and all rows read as much, so a row's result does not
    depend on the others.
    """

    positions: Int[Array, " rows"]

    def __call__(
        self,
        q: Float[Array, "rows heads head_dim"],
        k: Float[Array, "rows kv_heads head_dim"],
        v: Float[Array, "rows kv_heads head_dim"],
        cache: DenseLayerKV,
        reach: Reach = EVERYTHING,
        /,
    ) -> tuple[Float[Array, "rows heads head_dim"], DenseLayerKV]:
        """Store each token's key and value, then attend up to and including it."""
        rows, heads, head_dim = q.shape
        kv_heads = k.shape[1]
        row = jnp.arange(rows, dtype=jnp.int32)[:, None]
        head = jnp.arange(kv_heads, dtype=jnp.int32)[None, :]
        position = self.positions[:, None]
        # A finished row may run past its end within a dispatch: that is dropped.
        keys = cache.keys.at[row, head, :, position].set(k.astype(cache.keys.dtype), mode="drop")
        values = cache.values.at[row, head, position].set(v.astype(cache.values.dtype), mode="drop")
        queries = q.reshape(rows, kv_heads, heads // kv_heads, head_dim).astype(keys.dtype)
        scores = jnp.einsum("rkgd,rkds->rkgs", queries, keys, preferred_element_type=jnp.float32)
        visible = reach.sees(
            jnp.arange(keys.shape[-1], dtype=jnp.int32)[None, :], position, position
        )
        scores = jnp.where(visible[:, None, None], scores * head_dim**-0.5, -jnp.inf)
        weights = softmax(scores[..., None, :], reach.sinks)[..., 0, :].astype(values.dtype)
        mixed = jnp.einsum("rkgs,rksd->rkgd", weights, values, preferred_element_type=jnp.float32)
        return mixed.astype(q.dtype).reshape(rows, heads, head_dim), DenseLayerKV(keys, values)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def start_rows(
    graph: nnx.GraphDef[Decoder],
    weights: Any,
    caches: Sequence[DenseLayerKV],
    rows: RowState,
    prompts: RowPrompts,
    end_ids: Int[Array, " ends"],
) -> tuple[list[DenseLayerKV], RowState]:
    """Run prompts into their rows and choose their first tokens; caches and rows are donated."""
    decoder = nnx.merge(graph, weights)
    count, padded = prompts.token_ids.shape
    positions = jnp.tile(jnp.arange(padded, dtype=jnp.int32), count)
    attend = PromptsAttend(prompts.row, padded)
    output = decoder(prompts.token_ids.reshape(-1), positions, caches, attend)
    ends = jnp.arange(count, dtype=jnp.int32) * padded + prompts.length - 1
    first = choose(
        decoder.logits(output.hidden[ends]), prompts.length, prompts.temperature, prompts.seed
    )
    remaining = jnp.where(_is_end(first, end_ids), 0, prompts.max_tokens - 1)
    new = (first, prompts.length, remaining, prompts.temperature, prompts.seed)
    placed = (
        old.at[prompts.row].set(value, mode="drop") for old, value in zip(rows, new, strict=True)
    )
    return output.caches, RowState(*placed)


@functools.partial(jax.jit, static_argnums=0, static_argnames="steps", donate_argnums=(2, 3))
def continue_rows(
    graph: nnx.GraphDef[Decoder],
    weights: Any,
    caches: Sequence[DenseLayerKV],
    rows: RowState,
    end_ids: Int[Array, " ends"],
    *,
    steps: int,
) -> tuple[list[DenseLayerKV], RowState, Int[Array, "steps_and_start rows"]]:
    """Choose the next `steps` tokens of every row, in one loop on the device.

    The tokens returned begin with each row's newest before the steps. The choices of every step
    follow, `NO_TOKEN` where a row had finished. Caches and rows are donated.
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

    Positions are those of the tokens to be chosen. This is the choice that serving makes of a
    request with the same seed and temperature.
    """
    greedy = first_greatest(logits)

    def sample() -> Int[Array, " rows"]:
        warm = temperature > 0.0
        # The likeliest becomes 0: over a tiny temperature it would be infinite otherwise.
        centered = logits - logits.max(axis=-1, keepdims=True)
        scaled = centered / jnp.where(warm, temperature, 1.0)[:, None]
        noisy = scaled + gumbel_noise(seed, position, jnp.arange(logits.shape[-1]))
        return jnp.where(warm, first_greatest(noisy), greedy)

    # Gumbel noise for a vocabulary costs more than the head on CPU: none for an all-greedy batch.
    chosen: Int[Array, " rows"] = jax.lax.cond(jnp.any(temperature > 0.0), sample, lambda: greedy)
    return chosen


def _is_end(tokens: Int[Array, " tokens"], end_ids: Int[Array, " ends"]) -> Bool[Array, " tokens"]:
    return jnp.any(tokens[:, None] == end_ids[None, :], axis=1)
