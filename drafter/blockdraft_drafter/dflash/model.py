"""The DFlash drafter, exactly as published: one denoising pass over a block of mask tokens.

Draft layers are ordinary Qwen3 layers, with one difference: the context's keys and values are
projected from the target's features by the same k_proj and v_proj that the block uses, without
the layer's input norm, and are never updated by the draft layers.

All tokens of a block come out of one pass, so each is drafted without knowing which one was chosen
before it. A Markov head adds to its logits a matrix of low rank, looked up by that token; only this
sum, not the pass, is made one token after another. DFlash 2 has a selector instead, and layers with
convolutions.

Sources: z-lab/dflash, `dflash/model.py` (arXiv 2602.06036); DSpark (arXiv 2607.05147, section 3),
head type "vanilla".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_drafter.compiled import buffer
from blockdraft_drafter.compiled.attention import BlockAttend
from blockdraft_drafter.compiled.buffer import HeadSharding, LayerKV
from blockdraft_drafter.compiled.definition import DraftModel, MethodDefinition
from blockdraft_drafter.compiled.packing import PackedBlocks, PackedFeatures
from blockdraft_drafter.compiled.programs import Drafted, DraftPrograms, DraftWeights, draft_tokens
from blockdraft_drafter.compiled.recycling import with_recycled
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.convolution import ConvolvedLayer
from blockdraft_drafter.dflash.selector import CandidateSelector, draft_along_path
from blockdraft_models.decoder.attention import Attend, LayerCache
from blockdraft_models.decoder.decoder_layer import DecoderLayer
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.layer import RMSNorm
from blockdraft_models.decoder.linear import Linear, parameter, random_weights
from blockdraft_models.decoder.products import project
from blockdraft_models.decoder.rope import rotary_tables, rotate
from blockdraft_models.decoder.sharding import EMBED
from blockdraft_models.weights.loading import EmbeddingAndHead


class MarkovHead(nnx.Module):
    """Bias of the draft vocabulary's logits by the token before, which is a target id."""

    def __init__(
        self, vocab: int, draft_vocab: int, rank: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        """Start as no bias at all, yet with a gradient: the second factor is zero."""
        # Whole on every device: they are small, and a step reads one row of the first.
        whole = (None, None)
        self.markov_w1 = parameter(random_weights(rngs, (vocab, rank), rank**-0.5, dtype), whole)
        self.markov_w2 = parameter(jnp.zeros((draft_vocab, rank), dtype), whole)

    def widen(self) -> None:
        """Turn the factors into float32.

        XLA's CPU backend converts all of the first one to look up rows of bfloat16 in a loop, and
        multiplies one row of bfloat16 by converting the second one for every token: seven tokens of
        a draft vocabulary of 8,192 took 1.5 ms, and take 0.4 in float32.
        """
        for factor in (self.markov_w1, self.markov_w2):
            factor.set_value(factor[...].astype(jnp.float32))

    def __call__(self, previous: Int[Array, " rows"]) -> Float[Array, "rows draft"]:
        """Return the bias of the logits of the token after each of `previous`, float32."""
        return project(self.markov_w1[...][previous], self.markov_w2[...], dtype=jnp.float32)


class DFlash(DraftModel):
    """The draft model; embedding and head are the target's and are not part of it.

    Knows neither batches nor buffers: tokens are flat, and each layer's attention is passed in,
    so serving and training run the same layers.
    """

    config: DFlashConfig

    def __init__(
        self, config: DFlashConfig, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
    ) -> None:
        """Initialize random weights; randomness is that of the stream `params`."""
        decoder = config.decoder
        hidden, eps = decoder.hidden_size, decoder.rms_norm_eps
        self.config = config
        axes = (EMBED, "features")
        self.fc = Linear(config.feature_width, hidden, axes, bias=False, dtype=dtype, rngs=rngs)
        self.hidden_norm = RMSNorm(hidden, eps, dtype=dtype)
        group_size, block_inputs = config.conv_group_size, config.block_inputs

        def layer() -> DecoderLayer:
            if not group_size:
                return DecoderLayer(decoder, dtype=dtype, rngs=rngs)
            return ConvolvedLayer(
                decoder, group_size=group_size, block_inputs=block_inputs, dtype=dtype, rngs=rngs
            )

        self.layers = nnx.List([layer() for _ in range(decoder.num_layers)])
        self.norm = RMSNorm(hidden, eps, dtype=dtype)
        self.markov_head: MarkovHead | None = None
        if config.markov_rank:
            vocab = decoder.vocab_size
            draft_vocab = config.draft_vocab_size or vocab
            head = MarkovHead(vocab, draft_vocab, config.markov_rank, dtype=dtype, rngs=rngs)
            self.markov_head = nnx.data(head)
        self.candidate_selector: CandidateSelector | None = None
        if config.selector_rank:
            rank, top_k = config.selector_rank, config.selector_top_k
            selector = CandidateSelector(
                decoder.vocab_size, hidden, rank, top_k, dtype=dtype, rngs=rngs
            )
            self.candidate_selector = nnx.data(selector)

    def suit(self, platform: str) -> None:
        """Widen the Markov head where products of a single row of bfloat16 are slow."""
        if self.markov_head is not None and platform == "cpu":
            self.markov_head.widen()

    @property
    def projection(self) -> FeatureProjection:
        """Feature to hidden state, normalized."""
        scale, eps = self.hidden_norm.scale[...], self.hidden_norm.eps
        return FeatureProjection(self.fc.weight[...], scale, eps)

    def keys_values(
        self, hidden: Float[Array, "rows hidden"], positions: Int[Array, " rows"]
    ) -> list[
        tuple[Float[Array, "rows kv_heads head_dim"], Float[Array, "rows kv_heads head_dim"]]
    ]:
        """Return each layer's normalized, rotated keys, and its values, of projected features."""
        decoder = self.config.decoder
        shape = (hidden.shape[0], decoder.num_kv_heads, decoder.head_dim)
        rotary = rotary_tables(decoder, positions)
        projected = []
        for layer in self.layers:
            attention = layer.attention
            key, value = attention.key_and_value
            keys = key(hidden).reshape(shape)
            if attention.key_norm is not None:
                keys = attention.key_norm(keys)
            projected.append((rotate(keys, *rotary), value(hidden).reshape(shape)))
        return projected

    def draft(
        self,
        embedded: Float[Array, "tokens hidden"],
        positions: Int[Array, " tokens"],
        caches: Sequence[LayerCache],
        attends: Sequence[Attend[LayerCache]],
    ) -> Float[Array, "tokens hidden"]:
        """Denoise blocks of an anchor followed by mask tokens, side by side.

        `attends` are each layer's attention over its context, in `caches`, and the blocks. The
        target's head turns the result into the logits of the token at the same position.
        """
        rotary = rotary_tables(self.config.decoder, positions)
        x = embedded
        for layer, cache, attend in zip(self.layers, caches, attends, strict=True):
            x, _ = layer(x, rotary, cache, attend)
        return self.norm(x)


@dataclass(frozen=True, slots=True)
class DFlashPrograms(DraftPrograms):
    """The programs of DFlash; the cache has keys and values of every draft layer."""

    def cache(self) -> list[Any]:
        """Return shape, type and place of the draft KV cache, all slots."""
        return self.layer_caches()

    def append(
        self, weights: DraftWeights, cache: list[LayerKV], new: PackedFeatures
    ) -> list[LayerKV]:
        """Project features and store them in the draft KV cache."""
        model: DFlash = nnx.merge(self.graph, weights.model)
        projected = model.keys_values(self.hidden_states(model.projection, new), new.positions)
        return [
            buffer.write(layer, new.slots, new.positions, keys, values)
            for layer, (keys, values) in zip(cache, projected, strict=True)
        ]

    def append_and_draft(
        self,
        weights: DraftWeights,
        cache: list[LayerKV],
        new: PackedFeatures,
        blocks: PackedBlocks,
    ) -> tuple[list[LayerKV], Drafted]:
        """Append `new`, then draft `blocks` over contexts that include it.

        The block always has its full width, because the model was trained so; the host takes as
        many of the drafted tokens as it needs.
        """
        cache = self.append(weights, cache, new)
        model: DFlash = nnx.merge(self.graph, weights.model)
        config, (_, target, draft_ids) = model.config, weights
        hidden = denoise(model, target, cache, blocks, self.sharding)
        width, tokens = hidden.shape[-1], config.block_size - 1
        drafting = hidden.reshape(-1, config.block_inputs, width)[:, config.first_drafting_input :]
        logits = level(target.logits(drafting.reshape(-1, width)), config)
        if model.candidate_selector is not None:
            by_block = logits.reshape(-1, tokens, logits.shape[-1])
            drafted = draft_along_path(model.candidate_selector, drafting, by_block, blocks)
            return cache, Drafted(drafted, blocks.draft_lengths)
        if model.markov_head is not None:
            by_block = logits.reshape(-1, tokens, logits.shape[-1])
            drafted = draft_in_turn(model.markov_head, by_block, blocks, draft_ids)
            return cache, Drafted(drafted, blocks.draft_lengths)
        positions = blocks.lengths[:, None] + jnp.arange(1, tokens + 1)[None, :]
        sampling = jax.tree.map(lambda option: jnp.repeat(option, tokens, axis=0), blocks.sampling)
        drafted, _ = draft_tokens(logits, positions.reshape(-1), sampling, draft_ids)
        return cache, Drafted(drafted.reshape(-1, tokens), blocks.draft_lengths)


def denoise(
    model: DFlash,
    target: EmbeddingAndHead,
    cache: Sequence[LayerKV],
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
        for layer in range(len(cache))
    ]
    offsets = jnp.arange(config.block_inputs)
    tokens = jnp.where(offsets[None, :] == 0, blocks.anchors[:, None], config.mask_token_id)
    positions = blocks.lengths[:, None] + offsets[None, :]
    tokens, positions = tokens.reshape(-1), positions.reshape(-1)
    return model.draft(target.embedding[tokens], positions, cache, attends)


def level(
    logits: Float[Array, "tokens draft"], config: DFlashConfig
) -> Float[Array, "tokens draft"]:
    """Return logits multiplied, and bounded by a hyperbolic tangent, where `config` says so."""
    if config.output_multiplier != 1.0:
        logits = logits * config.output_multiplier
    if config.final_logit_softcapping is not None:
        bound = config.final_logit_softcapping
        logits = jnp.tanh(logits / bound) * bound
    return logits


def draft_in_turn(
    head: MarkovHead,
    logits: Float[Array, "blocks tokens draft"],
    blocks: PackedBlocks,
    draft_ids: Int[Array, " draft"] | None,
) -> Int[Array, "blocks tokens"]:
    """Draft the tokens of blocks one after another, as target ids, from the logits of one pass."""
    blocks = jax.tree.map(jnp.asarray, blocks)

    def draft(
        before: tuple[Int[Array, " blocks"], Int[Array, " blocks"]],
        logits: Float[Array, "blocks draft"],
    ) -> tuple[tuple[Array, Array], Array]:
        previous, position = before
        biased = with_recycled(logits + head(previous), blocks, previous, position + 1)
        token, _ = draft_tokens(biased, position + 1, blocks.sampling, draft_ids)
        return (token, position + 1), token

    # The anchor's position is the number of positions before it.
    before = blocks.anchors, blocks.lengths
    _, tokens = jax.lax.scan(draft, before, jnp.swapaxes(logits, 0, 1))
    drafted: Int[Array, "blocks tokens"] = tokens.T
    return drafted


DFLASH: MethodDefinition[DFlash] = MethodDefinition(
    "dflash", "DFlash", DFlashConfig, DFlash, DFlashPrograms
)
