"""The dense KV cache of a batch of answers in the making, and attention over it.

One layer's cache is a pair of arrays `[rows, kv_heads, capacity, head_dim]`: heads before
positions, because XLA multiplies by contiguous keys a third faster on CPU. A row belongs to one
answer at a time; whatever a previous one left behind its end is overwritten before it is seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.config import DecoderConfig

CHUNK_TOKENS = 64


class LayerKV(NamedTuple):
    """Keys and values of one layer; a pytree.

    Attributes:
        keys: Float[Array, "rows kv_heads capacity head_dim"], normalized and rotated.
        values: Float[Array, "rows kv_heads capacity head_dim"].
    """

    keys: Array
    values: Array


def allocate(
    config: DecoderConfig, *, rows: int, capacity: int, dtype: DTypeLike
) -> Sequence[LayerKV]:
    """Return an empty cache for every layer; `capacity` is rounded up to whole chunks."""
    positions = -(-capacity // CHUNK_TOKENS) * CHUNK_TOKENS
    shape = (rows, config.num_kv_heads, positions, config.head_dim)
    return [
        LayerKV(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(config.num_layers)
    ]


@dataclass(frozen=True, slots=True)
class PromptAttend:
    """Attention of one padded prompt, which fills a row from its start; an `Attend`.

    Attributes:
        row: The row to fill.
        length: Tokens of the padded prompt.
    """

    row: Int[Array, ""]
    length: int

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: LayerKV,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], LayerKV]:
        """Attend within the prompt and store its keys and values, padding included."""
        attended, _ = DenseAttend(1, self.length)(q, k, v, cache)
        start = (self.row, 0, 0, 0)
        keys, values = (
            jax.lax.dynamic_update_slice(old, new.transpose(1, 0, 2)[None].astype(old.dtype), start)
            for old, new in zip(cache, (k, v), strict=True)
        )
        return attended, LayerKV(keys, values)


@dataclass(frozen=True, slots=True)
class RowAttend:
    """Attention of the newest token of every row over its row; an `Attend`.

    The context is read in chunks with a running softmax, as many as the longest row needs. What
    a row does not see adds exactly nothing, so its result does not depend on the other rows.

    Attributes:
        positions: Position of each row's token.
    """

    positions: Int[Array, " rows"]

    def __call__(
        self,
        q: Float[Array, "rows heads head_dim"],
        k: Float[Array, "rows kv_heads head_dim"],
        v: Float[Array, "rows kv_heads head_dim"],
        cache: LayerKV,
        /,
    ) -> tuple[Float[Array, "rows heads head_dim"], LayerKV]:
        """Store each token's key and value, then attend up to and including it."""
        rows, heads, head_dim = q.shape
        kv_heads = k.shape[1]
        place = (
            jnp.arange(rows, dtype=jnp.int32)[:, None],
            jnp.arange(kv_heads, dtype=jnp.int32)[None, :],
            self.positions[:, None],
        )
        # A finished row may run past its end within a dispatch: that is dropped.
        cache = LayerKV(
            cache.keys.at[place].set(k.astype(cache.keys.dtype), mode="drop"),
            cache.values.at[place].set(v.astype(cache.values.dtype), mode="drop"),
        )
        queries = q.reshape(rows, kv_heads, heads // kv_heads, head_dim).astype(cache.keys.dtype)

        def add_chunk(index: Int[Array, ""], state: _State) -> _State:
            start = index * CHUNK_TOKENS
            keys = jax.lax.dynamic_slice_in_dim(cache.keys, start, CHUNK_TOKENS, axis=2)
            values = jax.lax.dynamic_slice_in_dim(cache.values, start, CHUNK_TOKENS, axis=2)
            visible = start + jnp.arange(CHUNK_TOKENS)[None, :] <= self.positions[:, None]
            scores = jnp.einsum(
                "rkgd,rksd->rkgs", queries, keys, preferred_element_type=jnp.float32
            )
            scores = jnp.where(visible[:, None, None], scores * head_dim**-0.5, -jnp.inf)
            top = jnp.maximum(state[0], scores.max(axis=-1))
            weights, shrink = jnp.exp(scores - top[..., None]), jnp.exp(state[0] - top)
            mixed = jnp.einsum(
                "rkgs,rksd->rkgd",
                weights.astype(values.dtype),
                values,
                preferred_element_type=jnp.float32,
            )
            total = state[1] * shrink + weights.sum(axis=-1)
            return top, total, state[2] * shrink[..., None] + mixed

        # The first chunk holds position 0, which every row sees: no maximum stays infinite.
        shape = queries.shape[:3]
        floor = jnp.full(shape, -jnp.inf)
        state = (floor, jnp.zeros(shape), jnp.zeros(queries.shape))
        chunks = jnp.minimum(jnp.max(self.positions), cache.keys.shape[2] - 1) // CHUNK_TOKENS + 1
        _, total, mixed = jax.lax.fori_loop(0, chunks, add_chunk, state)
        return (mixed / total[..., None]).astype(q.dtype).reshape(rows, heads, head_dim), cache


# Running maximum and normalizer, [rows, kv_heads, group]; weighted values with a trailing
# head_dim. All float32.
_State = tuple[Array, Array, Array]
