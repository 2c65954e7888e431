"""The computations of a DFlash step, as pure functions to be compiled whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from blockdraft_drafter.compiled.choice import draft_tokens
from blockdraft_drafter.compiled.packing import PackedBlocks, PackedFeatures
from blockdraft_drafter.compiled.steps import Drafted, DraftSteps, DraftWeights
from blockdraft_drafter.context import buffer
from blockdraft_drafter.context.attention import BlockAttend
from blockdraft_drafter.context.buffer import LayerContext
from blockdraft_drafter.context.sharding import HeadSharding
from blockdraft_drafter.dflash.markov import draft_in_turn
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_models.weights.loading import EmbeddingAndHead


@dataclass(frozen=True, slots=True)
class DFlashSteps(DraftSteps):
    """The computations of a DFlash step; the context is that of every draft layer."""

    def context(self) -> list[Any]:
        """Return shape, type and place of the context buffer of all slots."""
        return self.layer_contexts()

    def append(
        self, weights: DraftWeights, context: list[LayerContext], new: PackedFeatures
    ) -> list[LayerContext]:
        """Project features and store them in the context buffer."""
        model: DFlash = nnx.merge(self.graph, weights.model)
        projected = model.keys_values(self.hidden_states(model.projection, new), new.positions)
        return [
            buffer.write(layer, new.slots, new.positions, keys, values)
            for layer, (keys, values) in zip(context, projected, strict=True)
        ]

    def append_and_draft(
        self,
        weights: DraftWeights,
        context: list[LayerContext],
        new: PackedFeatures,
        blocks: PackedBlocks,
    ) -> tuple[list[LayerContext], Drafted]:
        """Append `new`, then draft `blocks` from contexts that include it.

        The block always has its full width, because the model was trained so; how many of the
        drafted tokens are wanted is the host's business.
        """
        context = self.append(weights, context, new)
        model: DFlash = nnx.merge(self.graph, weights.model)
        config, (_, target, draft_ids) = model.config, weights
        hidden = denoise(model, target, context, blocks, self.sharding)
        width, tokens = hidden.shape[-1], config.block_size - 1
        drafting = hidden.reshape(-1, config.block_inputs, width)[:, config.first_drafting_input :]
        logits = target.logits(drafting.reshape(-1, width))
        if model.markov_head is not None:
            by_block = logits.reshape(-1, tokens, logits.shape[-1])
            drafted = draft_in_turn(model.markov_head, by_block, blocks, draft_ids)
            return context, Drafted(drafted, blocks.wanted)
        positions = blocks.lengths[:, None] + jnp.arange(1, tokens + 1)[None, :]
        sampling = jax.tree.map(lambda option: jnp.repeat(option, tokens, axis=0), blocks.sampling)
        drafted, _ = draft_tokens(logits, positions.reshape(-1), sampling, draft_ids)
        return context, Drafted(drafted.reshape(-1, tokens), blocks.wanted)


def denoise(
    model: DFlash,
    target: EmbeddingAndHead,
    context: Sequence[LayerContext],
    blocks: PackedBlocks,
    sharding: HeadSharding | None = None,
) -> Float[Array, "tokens hidden"]:
    """Return the final hidden state of every block token, blocks side by side."""
    config = model.config
    attends = [
        BlockAttend(
            slots=blocks.slots,
            lengths=blocks.lengths,
            block_size=config.block_inputs,
            window=config.window(layer),
            is_causal=config.is_causal,
            sharding=sharding,
        )
        for layer in range(len(context))
    ]
    tokens, positions = block_tokens(blocks, config.block_inputs, config.mask_token_id)
    return model.draft(target.embedding[tokens], positions, context, attends)


def block_tokens(
    blocks: PackedBlocks, inputs: int, mask_token_id: int
) -> tuple[Int[Array, " tokens"], Int[Array, " tokens"]]:
    """Return token ids and positions of the inputs of all blocks, side by side."""
    offsets = jnp.arange(inputs)
    tokens = jnp.where(offsets[None, :] == 0, blocks.anchors[:, None], mask_token_id)
    positions = blocks.lengths[:, None] + offsets[None, :]
    return tokens.reshape(-1), positions.reshape(-1)
