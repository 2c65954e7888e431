"""The dense KV cache of a batch of answers in the making, and attention over it.

A row belongs to one answer at a time; whatever a previous one left behind its end is overwritten
before it is seen. The layout is the one in which XLA's CPU backend multiplies fastest: keys by
their elements, values by their positions, and always a whole array, for a slice of one is copied
before it is multiplied. That the whole capacity is read costs little: of many rows there is nearly
always one that is near its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.config import DecoderConfig


class LayerKV(NamedTuple):
    """Keys and values of one layer; a pytree.

    Attributes:
        keys: Float[Array, "rows kv_heads head_dim capacity"], normalized and rotated.
        values: Float[Array, "rows kv_heads capacity head_dim"].
    """

    keys: Array
    values: Array


def allocate(
    config: DecoderConfig, *, rows: int, capacity: int, dtype: DTypeLike
) -> Sequence[LayerKV]:
    """Return an empty cache of so many positions for every layer."""
    keys = (rows, config.num_kv_heads, config.head_dim, capacity)
    values = (rows, config.num_kv_heads, capacity, config.head_dim)
    return [
        LayerKV(jnp.zeros(keys, dtype), jnp.zeros(values, dtype)) for _ in range(config.num_layers)
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
        new = LayerKV(k.transpose(1, 2, 0), v.transpose(1, 0, 2))
        keys, values = (
            jax.lax.dynamic_update_slice(old, part[None].astype(old.dtype), start)
            for old, part in zip(cache, new, strict=True)
        )
        return attended, LayerKV(keys, values)


@dataclass(frozen=True, slots=True)
class RowAttend:
    """Attention of the newest token of every row over its row; an `Attend`.

    What a row does not see adds exactly nothing, and all rows read as much, so a row's result does
    not depend on the others.

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
        row = jnp.arange(rows, dtype=jnp.int32)[:, None]
        head = jnp.arange(kv_heads, dtype=jnp.int32)[None, :]
        position = self.positions[:, None]
        # A finished row may run past its end within a dispatch: that is dropped.
        keys = cache.keys.at[row, head, :, position].set(k.astype(cache.keys.dtype), mode="drop")
        values = cache.values.at[row, head, position].set(v.astype(cache.values.dtype), mode="drop")
        queries = q.reshape(rows, kv_heads, heads // kv_heads, head_dim).astype(keys.dtype)
        scores = jnp.einsum("rkgd,rkds->rkgs", queries, keys, preferred_element_type=jnp.float32)
        visible = jnp.arange(keys.shape[-1], dtype=jnp.int32)[None, :] <= position
        scores = jnp.where(visible[:, None, None], scores * head_dim**-0.5, -jnp.inf)
        weights = jax.nn.softmax(scores).astype(values.dtype)
        mixed = jnp.einsum("rkgs,rksd->rkgd", weights, values, preferred_element_type=jnp.float32)
        return mixed.astype(q.dtype).reshape(rows, heads, head_dim), LayerKV(keys, values)
