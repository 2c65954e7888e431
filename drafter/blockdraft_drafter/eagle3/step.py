"""The two computations of an EAGLE-3 step, as pure functions to be compiled whole."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from blockdraft_drafter.compiled.packing import PackedBlocks, PackedRows
from blockdraft_drafter.compiled.steps import Drafted
from blockdraft_drafter.compiled.vocabulary import likeliest
from blockdraft_drafter.context import buffer
from blockdraft_drafter.context.attention import ChainAttend
from blockdraft_drafter.context.buffer import LayerContext
from blockdraft_drafter.context.portable import ContextView, Keys
from blockdraft_drafter.context.sharding import HeadSharding
from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_models.weights.loading import EmbeddingAndHead


class Eagle3Context(NamedTuple):
    """The contexts of all slots; a pytree.

    Attributes:
        layer: Keys and values of every committed position.
        latest: Float[Array, "slots hidden"], the projected feature of the last one, where
            drafting begins.
    """

    layer: LayerContext
    latest: Array


def append(
    model: Eagle3,
    embedding: Float[Array, "vocab hidden"],
    context: Eagle3Context,
    rows: PackedRows,
) -> Eagle3Context:
    """Project features and store them in the context buffer."""
    hidden = model.project_features(rows.features)
    keys, values = model.keys_values(embedding[rows.next_tokens], hidden, rows.positions)
    # A slot's rows lie side by side; of each slot only the last is where drafting begins.
    count = rows.slots.shape[0]
    into_slot = rows.slots[None, :] == jnp.arange(context.latest.shape[0])[:, None]
    last = jnp.max(jnp.where(into_slot, jnp.arange(count)[None, :], -1), axis=1)
    newest = hidden[jnp.maximum(last, 0)].astype(context.latest.dtype)
    latest = jnp.where((last >= 0)[:, None], newest, context.latest)
    return Eagle3Context(
        buffer.write(context.layer, rows.slots, rows.positions, keys, values), latest
    )


def append_and_draft(
    model: Eagle3,
    target: EmbeddingAndHead,
    draft_ids: Int[Array, " draft"] | None,
    context: Eagle3Context,
    rows: PackedRows,
    blocks: PackedBlocks,
    sharding: HeadSharding | None = None,
) -> tuple[Eagle3Context, Drafted]:
    """Append `rows`, then draft `blocks` token by token from the contexts that include them.

    Every step is made whatever number of tokens is wanted, so that one executable does for all.

    Args:
        model: The drafter.
        target: Embedding, and the head over the draft vocabulary.
        draft_ids: The draft vocabulary; None for all tokens.
        context: The buffer.
        rows: To append.
        blocks: To draft.
        sharding: Of the heads; None for one device.
    """
    context = append(model, target.embedding, context, rows)
    # The last committed position is the first step's own entry, not its context.
    before = jnp.maximum(blocks.lengths - 1, 0)
    attend = ChainAttend(ContextView(context.layer, blocks.slots, before), sharding)
    hidden = context.latest[blocks.slots].astype(target.embedding.dtype)
    hidden = jnp.where((blocks.lengths > 0)[:, None], hidden, jnp.zeros_like(hidden))
    own: Keys | None = None
    token = jnp.asarray(blocks.anchors)
    tokens, log_probs = [], []
    for step in range(model.config.block_size - 1):
        hidden, own = model.step(target.embedding[token], hidden, before + step, own, attend)
        best, log_prob = likeliest(target.logits(model.norm(hidden)))
        token = best if draft_ids is None else draft_ids[best]
        tokens.append(token)
        log_probs.append(log_prob)
    return context, Drafted(jnp.stack(tokens, axis=1), jnp.stack(log_probs, axis=1))
