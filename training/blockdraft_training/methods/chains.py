"""Many EAGLE-3 drafts of a batch of sequences at once, step by step as they are served.

A draft from the anchor at position a starts at entry a - 1, the last whose feature the target has
given, and goes on from the layer's own outputs ("training-time test", arXiv 2503.01840, section
3.2). Its tokens are the true ones: a serving draft that was right so far holds the same, and
where it was wrong nothing after counts.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_training.features.batches import SequenceBatch

# Keys and values, each [batch, blocks, entries, kv_heads, head_dim].
_Own = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class ChainsAttend:
    """Attention of each draft's next entry over its context and its own entries; an `Attend`.

    Attributes:
        keys: Of every context position, [batch, length, kv_heads, head_dim].
        values: Likewise.
        starts: First entry of each draft, [batch, blocks]; its context lies before.
    """

    keys: Float[Array, "batch length kv_heads head_dim"]
    values: Float[Array, "batch length kv_heads head_dim"]
    starts: Int[Array, "batch blocks"]

    def nothing(self) -> _Own:
        """Return the own entries before the first."""
        shape = (*self.starts.shape, 0, *self.keys.shape[2:])
        empty = jnp.zeros(shape, self.keys.dtype)
        return empty, empty

    def __call__(
        self,
        q: Float[Array, "entries heads head_dim"],
        k: Float[Array, "entries kv_heads head_dim"],
        v: Float[Array, "entries kv_heads head_dim"],
        cache: _Own,
        /,
    ) -> tuple[Float[Array, "entries heads head_dim"], _Own]:
        """Attend; the entry sees itself too. `cache` are the draft's own entries."""
        entries, heads, head_dim = q.shape
        batch, length, kv_heads, _ = self.keys.shape
        one = (batch, self.starts.shape[1], 1, kv_heads)
        own_keys = jnp.concatenate([cache[0], k.reshape(*one, head_dim)], axis=2)
        own_values = jnp.concatenate([cache[1], v.reshape(*one, head_dim)], axis=2)
        queries = q.reshape(*one[:2], kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
        seen, mine = (
            jnp.einsum(spelling, queries, keys, preferred_element_type=jnp.float32)
            for spelling, keys in (
                ("bnkgd,blkd->bkgnl", self.keys),
                ("bnkgd,bnskd->bkgns", own_keys),
            )
        )
        seen = jnp.where(self._visible()[:, None, None], seen, -jnp.inf)
        weights = jax.nn.softmax(jnp.concatenate([seen, mine], axis=-1), axis=-1).astype(v.dtype)
        attended = jnp.einsum("bkgnl,blkd->bnkgd", weights[..., :length], self.values)
        attended += jnp.einsum("bkgns,bnskd->bnkgd", weights[..., length:], own_values)
        return attended.reshape(entries, heads, head_dim), (own_keys, own_values)

    def _visible(self) -> Bool[Array, "batch blocks length"]:
        positions = jnp.arange(self.keys.shape[1])
        return positions[None, None, :] < self.starts[..., None]


def draft_chains(
    model: Eagle3,
    embedding: Float[Array, "vocab hidden"],
    batch: SequenceBatch,
    anchors: Int[Array, "batch blocks"],
) -> Float[Array, "batch blocks slots hidden"]:
    """Return the hidden state of every step after the anchor: input of the head."""
    config = model.config
    rows, length = batch.token_ids.shape
    blocks, width = anchors.shape[1], config.decoder.hidden_size
    embedding = embedding.astype(model.fc.weight[...].dtype)
    features = model.projection(batch.features.reshape(rows * length, -1))
    positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), rows)
    following = jnp.roll(batch.token_ids, -1, axis=1).reshape(-1)
    keys, values = (
        part.reshape(rows, length, *part.shape[1:])
        for part in model.keys_values(embedding[following], features, positions)
    )
    starts = anchors - 1
    attend = ChainsAttend(keys, values, starts)
    first = jnp.take_along_axis(
        features.reshape(rows, length, width), starts[..., None], axis=1, mode="clip"
    )
    hidden, own = first.reshape(rows * blocks, width), attend.nothing()
    outputs = []
    for step in range(config.block_size - 1):
        tokens = jnp.take_along_axis(batch.token_ids, anchors + step, axis=1, mode="clip")
        hidden, own = model.step(
            embedding[tokens.reshape(-1)], hidden, (starts + step).reshape(-1), own, attend
        )
        outputs.append(model.norm(hidden).reshape(rows, blocks, width))
    return jnp.stack(outputs, axis=2)
