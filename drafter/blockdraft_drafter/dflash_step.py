"""The two computations of a drafter step, as pure functions to be compiled whole."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from blockdraft_drafter import buffer
from blockdraft_drafter.attention import BlockAttend
from blockdraft_drafter.buffer import LayerContext
from blockdraft_drafter.dflash import DFlash
from blockdraft_drafter.packing import PackedBlocks, PackedRows
from blockdraft_models.loading import EmbeddingAndHead


class Drafted(NamedTuple):
    """What a block became; a pytree.

    Attributes:
        token_ids: Int[Array, "blocks block_size-1"], the likeliest token of each mask slot.
        log_probs: Float[Array, "blocks block_size-1"], natural logarithm of its probability.
    """

    token_ids: Array
    log_probs: Array


def append(model: DFlash, context: Sequence[LayerContext], rows: PackedRows) -> list[LayerContext]:
    """Project features and store them in the context buffer."""
    projected = model.project_context(rows.features, rows.positions)
    return [
        buffer.write(layer, rows.slots, rows.positions, keys, values)
        for layer, (keys, values) in zip(context, projected, strict=True)
    ]


def append_and_draft(
    model: DFlash,
    target: EmbeddingAndHead,
    context: Sequence[LayerContext],
    rows: PackedRows,
    blocks: PackedBlocks,
) -> tuple[list[LayerContext], Drafted]:
    """Append `rows`, then draft `blocks` from the contexts that include them.

    The block always has its full width, because the model was trained so; how many of the drafted
    tokens are wanted is the host's business.
    """
    context = append(model, context, rows)
    block_size = model.config.block_size
    attends = [
        BlockAttend(
            slots=blocks.slots,
            lengths=blocks.lengths,
            block_size=block_size,
            window=model.config.window(layer),
            is_causal=model.config.is_causal,
        )
        for layer in range(len(context))
    ]
    tokens, positions = block_tokens(blocks, block_size, model.config.mask_token_id)
    hidden = model.draft(target.embedding[tokens], positions, context, attends)
    # The anchor is known: only the mask slots go through the head.
    masked = hidden.reshape(-1, block_size, hidden.shape[-1])[:, 1:]
    best, log_probs = greedy(target.logits(masked.reshape(-1, hidden.shape[-1])))
    shape = (-1, block_size - 1)
    return context, Drafted(best.reshape(shape), log_probs.reshape(shape))


def block_tokens(
    blocks: PackedBlocks, block_size: int, mask_token_id: int
) -> tuple[Int[Array, " tokens"], Int[Array, " tokens"]]:
    """Return the token ids and positions of all blocks, side by side."""
    offsets = jnp.arange(block_size)
    tokens = jnp.where(offsets[None, :] == 0, blocks.anchors[:, None], mask_token_id)
    positions = blocks.lengths[:, None] + offsets[None, :]
    return tokens.reshape(-1), positions.reshape(-1)


def greedy(
    logits: Float[Array, "rows vocab"],
) -> tuple[Int[Array, " rows"], Float[Array, " rows"]]:
    """Return each row's likeliest token, the lowest id among equals, and its log-probability."""
    maximum = jnp.max(logits, axis=-1)
    best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    normalizer = jnp.sum(jnp.exp(logits - maximum[:, None]), axis=-1)
    return best, -jnp.log(normalizer)
