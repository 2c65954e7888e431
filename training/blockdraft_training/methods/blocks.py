"""Many draft blocks of a batch of sequences in one masked forward pass of the draft model.

A block at anchor position a holds the anchor token and `block_size - 1` masks. It sees the
context strictly before a and its own tokens, nothing of other blocks: exactly what the serving
drafter sees. Source: arXiv 2602.06036, section 4.2 and appendix A.1.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from blockdraft_drafter.dflash.model import DFlash
from blockdraft_training.features.batches import SequenceBatch


@dataclass(frozen=True, slots=True)
class BlocksAttend:
    """One layer's attention of all blocks over their contexts and themselves; an `Attend`.

    Attributes:
        anchors: Position of each block's anchor, [batch, blocks].
        length: Context positions per sequence.
        block_size: Tokens per block.
        window: Keys this many positions away or further are invisible; None for all.
        is_causal: Whether a block position sees only itself and what is before it.
    """

    anchors: Int[Array, "batch blocks"]
    length: int
    block_size: int
    window: int | None = None
    is_causal: bool = False

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: tuple[Array, Array],
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], tuple[Array, Array]]:
        """Attend; `cache` is the layer's context keys and values, [batch * length, ...]."""
        tokens, heads, head_dim = q.shape
        kv_heads = k.shape[1]
        batch, blocks = self.anchors.shape
        own = (batch, blocks, self.block_size, kv_heads)
        queries = q.reshape(*own, heads // kv_heads, head_dim) * head_dim**-0.5
        own_keys, own_values = k.reshape(*own, head_dim), v.reshape(*own, head_dim)
        context = (batch, self.length, kv_heads, head_dim)
        keys, values = (part.reshape(context) for part in cache)
        seen = jnp.einsum("bnqkgd,blkd->bkgnql", queries, keys, preferred_element_type=jnp.float32)
        mine = jnp.einsum(
            "bnqkgd,bnskd->bkgnqs", queries, own_keys, preferred_element_type=jnp.float32
        )
        seen = jnp.where(self._context_mask()[:, None, None], seen, -jnp.inf)
        mine = jnp.where(self._own_mask()[None, None, None, None], mine, -jnp.inf)
        weights = jax.nn.softmax(jnp.concatenate([seen, mine], axis=-1), axis=-1).astype(v.dtype)
        attended = jnp.einsum("bkgnql,blkd->bnqkgd", weights[..., : self.length], values)
        attended += jnp.einsum("bkgnqs,bnskd->bnqkgd", weights[..., self.length :], own_values)
        return attended.reshape(tokens, heads, head_dim), cache

    def _context_mask(self) -> Bool[Array, "batch blocks block_or_1 length"]:
        positions = jnp.arange(self.length)
        visible = (positions[None, None, :] < self.anchors[..., None])[:, :, None, :]
        if self.window is None:
            return visible
        queries = self.anchors[..., None] + jnp.arange(self.block_size)[None, None, :]
        distance = queries[..., None] - positions[None, None, None, :]
        return visible & (distance < self.window)

    def _own_mask(self) -> Bool[Array, "block block"]:
        distance = jnp.arange(self.block_size)[:, None] - jnp.arange(self.block_size)[None, :]
        visible = jnp.ones_like(distance, jnp.bool_)
        if self.is_causal:
            visible &= distance >= 0
        if self.window is not None:
            visible &= jnp.abs(distance) < self.window
        return visible


def draft_blocks(
    model: DFlash,
    embedding: Float[Array, "vocab hidden"],
    batch: SequenceBatch,
    anchors: Int[Array, "batch blocks"],
) -> Float[Array, "batch blocks slots hidden"]:
    """Return the hidden state of every slot after the anchor: input of the target's head."""
    config = model.config
    rows, length = batch.token_ids.shape
    blocks = anchors.shape[1]
    positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), rows)
    width = batch.features.shape[-1]
    features = batch.features.reshape(rows * length, width)
    # Not that of the projection, which keeps its own where it has no part in the step.
    dtype = model.norm.scale[...].dtype
    features = features.astype(dtype) if batch.projected else model.projection(features)
    contexts = model.keys_values(features, positions)
    anchor_ids = jnp.take_along_axis(batch.token_ids, anchors, axis=1, mode="clip")
    masks = jnp.full((rows, blocks, config.block_inputs - 1), config.mask_token_id, jnp.int32)
    block_ids = jnp.concatenate([anchor_ids[..., None], masks], axis=-1)
    offsets = jnp.arange(config.block_inputs, dtype=jnp.int32)
    block_positions = anchors[..., None] + offsets[None, None, :]
    attends: list[Any] = [
        BlocksAttend(anchors, length, config.block_inputs, config.window(layer), config.is_causal)
        for layer in range(len(contexts))
    ]
    hidden = model.draft(
        embedding[block_ids.reshape(-1)].astype(dtype),
        block_positions.reshape(-1),
        contexts,
        attends,
    )
    return hidden.reshape(rows, blocks, config.block_inputs, -1)[
        :, :, config.first_drafting_input :
    ]
