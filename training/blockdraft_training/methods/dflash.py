"""The training of DFlash.

Many blocks of a batch of sequences are drafted in one masked forward pass. A block at anchor
position a holds the anchor token and `block_size - 1` masks. It sees the context strictly before a
and its own tokens, nothing of other blocks: exactly what the serving drafter sees (arXiv
2602.06036, section 4.2 and appendix A.1).

Draft layers start as copies from the ends of the target: the first draft layer meets what the
target's first layer meets, bare embeddings; the last ones must produce what the target's last
layers produce, inputs of the same head.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_models.decoder.attention import EVERYTHING, Reach
from blockdraft_models.decoder.decoder_layer import DecoderLayer
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_training.batches import SequenceBatch
from blockdraft_training.errors import TrainingError
from blockdraft_training.methods.recipe import Recipe, pass_last_feature
from blockdraft_training.settings import DFlashSettings

# γ by block size as published; other sizes take the nearest, scaled.
_PUBLISHED_DECAY = {8: 4.0, 10: 5.0, 16: 7.0}


@dataclass(frozen=True, slots=True)
class BlocksAttend:
    """One layer's attention of all blocks over their contexts and themselves; an `Attend`."""

    anchors: Int[Array, "batch blocks"]  # position of each block's anchor
    length: int  # context positions per sequence
    block_size: int  # tokens per block
    # Keys this many positions away or further are invisible; None for all.
    window: int | None = None
    is_causal: bool = False  # whether a block position sees only itself and what is before it

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: tuple[Array, Array],
        reach: Reach = EVERYTHING,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], tuple[Array, Array]]:
        """Attend; `cache` is the layer's context keys and values, [batch * length, ...]."""
        tokens, heads, head_dim = q.shape
        kv_heads = k.shape[1]
        batch, blocks = self.anchors.shape
        shape = (batch, blocks, self.block_size, kv_heads)
        queries = q.reshape(*shape, heads // kv_heads, head_dim) * head_dim**-0.5
        own_keys, own_values = k.reshape(*shape, head_dim), v.reshape(*shape, head_dim)
        context = (batch, self.length, kv_heads, head_dim)
        keys, values = (part.reshape(context) for part in cache)
        context_scores = jnp.einsum(
            "bnqkgd,blkd->bkgnql", queries, keys, preferred_element_type=jnp.float32
        )
        own_scores = jnp.einsum(
            "bnqkgd,bnskd->bkgnqs", queries, own_keys, preferred_element_type=jnp.float32
        )
        visible = self._context_mask()[:, None, None]
        context_scores = jnp.where(visible, context_scores, -jnp.inf)
        visible = self._own_mask()[None, None, None, None]
        own_scores = jnp.where(visible, own_scores, -jnp.inf)
        scores = jnp.concatenate([context_scores, own_scores], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
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
    # The projection may have another type, if it has no part in the step.
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
    every = hidden.reshape(rows, blocks, config.block_inputs, -1)
    return every[:, :, config.first_drafting_input :]


@dataclass(frozen=True, slots=True)
class DFlashRecipe(Recipe[DFlashConfig, DFlash]):
    """The `Recipe` of DFlash."""

    settings: DFlashSettings
    method: ClassVar = DFLASH
    idea: ClassVar = (
        "Drafts a block of tokens in one pass from the target's hidden states (block diffusion,\n"
        "arXiv 2602.06036)."
    )
    projection_parts: ClassVar = frozenset({"fc", "hidden_norm"})

    draft = staticmethod(draft_blocks)

    def default_config(self, target: Checkpoint) -> DFlashConfig:
        """Return the configuration of a drafter that starts without an earlier one."""
        settings, target_layers = self.settings, target.config.num_layers
        if settings.init == "target" and settings.layers > target_layers:
            raise TrainingError(
                f"{settings.layers} draft layers cannot copy {target_layers} target layers"
            )
        config = DFlashConfig.default_for(
            target.config, block_size=settings.block_size, num_layers=settings.layers
        )
        layer_ids = settings.feature_layers or config.target_layer_ids
        return replace(config, target_layer_ids=layer_ids)

    def given_fields(self) -> dict[str, Any]:
        """Return the fields of a configuration that the settings alone decide."""
        return {
            "block_size": self.settings.block_size,
            "sample_from_anchor": self.settings.sample_from_anchor,
            "markov_rank": self.settings.markov_rank,
        }

    def from_target(self, config: DFlashConfig, decoder: Decoder) -> DFlash:
        """Return a model in float32 that starts from the target's first layer and its last ones."""
        model = DFlash(config, dtype=jnp.float32, rngs=nnx.Rngs(self.settings.seed))
        layers, target_layers = len(model.layers), decoder.config.num_layers
        copied = (0, *range(target_layers - layers + 1, target_layers))
        for layer, layer_id in zip(model.layers, copied, strict=True):
            _copy_layer(layer, decoder.layers[layer_id])
        model.norm.scale[...] = decoder.norm.scale[...].astype(jnp.float32)
        pass_last_feature(model.fc, config.decoder.hidden_size)
        return model

    def from_drafter(
        self, config: DFlashConfig, earlier: Drafter[DFlash], draft_ids: np.ndarray | None
    ) -> DFlash:
        """Return a model that starts from an earlier drafter, as far as it fits.

        Its layers are kept. A Markov head is kept for the tokens both vocabularies have; if the
        rank is another or there was none, it starts anew.
        """
        self.check_trainable(earlier, self.settings.init)
        model = DFlash(config, dtype=jnp.float32, rngs=nnx.Rngs(self.settings.seed))
        source = earlier.model
        model.fc, model.hidden_norm = source.fc, source.hidden_norm
        model.layers, model.norm = source.layers, source.norm
        ours, theirs = model.markov_head, source.markov_head
        if ours is None or theirs is None or source.config.markov_rank != config.markov_rank:
            return model
        every = np.arange(config.decoder.vocab_size)
        old = every if earlier.draft_ids is None else earlier.draft_ids
        row_of = np.full(len(every), -1)
        row_of[old] = np.arange(len(old))
        rows = row_of[every if draft_ids is None else draft_ids]
        moved = theirs.markov_w2[...][np.maximum(rows, 0)]
        ours.markov_w1[...] = theirs.markov_w1[...]
        ours.markov_w2[...] = jnp.where((rows >= 0)[:, None], moved, 0.0)
        return model

    def check_trainable(self, drafter: Drafter[DFlash], name: object) -> None:
        """Raise TrainingError if a drafter has parts that training knows nothing of."""
        if drafter.model.config.is_dflash2:
            raise TrainingError(f"{name} is DFlash 2, which cannot be trained here")
        if drafter.embedding is not None or drafter.head is not None:
            raise TrainingError(f"{name} has an embedding or a head of its own")

    def decay(self, block_size: int) -> float:
        """Return the published γ of a block size."""
        nearest = min(_PUBLISHED_DECAY, key=lambda size: abs(size - block_size))
        return _PUBLISHED_DECAY[nearest] * block_size / nearest


def _copy_layer(ours: DecoderLayer, theirs: DecoderLayer) -> None:
    """Copy weights; the input norm's scale moves into the projections behind it.

    Contexts pass the projections without the layer's input norm, so only with a scale of one do
    they arrive as the target's own keys and values.
    """
    weights = dict(nnx.to_flat_state(nnx.state(theirs)))
    flat = dict(nnx.to_flat_state(nnx.state(ours)))
    for key, variable in flat.items():
        if key not in weights:
            continue  # q and k norms, which this target may lack
        value = weights[key][...].astype(jnp.float32)
        if value.shape != variable[...].shape:
            raise TrainingError(
                f"draft layer weight {'.'.join(map(str, key))} is {variable[...].shape}, the"
                f" target's {value.shape}: only layers of the target's shape can copy it"
            )
        flat[key] = variable.replace(value)
    nnx.update(ours, nnx.from_flat_state(flat))
    assert ours.attention_norm is not None  # DFlash layers always have it
    attention, scale = ours.attention, ours.attention_norm.scale[...]
    to_keys, to_values = attention.key_and_value
    for projection in (attention.query, to_keys, to_values):
        projection.weight[...] = projection.weight[...] * scale[None, :]
    ours.attention_norm.scale[...] = jnp.ones_like(scale)
    if theirs.attention.query_norm is None:
        for norm, projection in (
            (attention.query_norm, attention.query),
            (attention.key_norm, to_keys),
        ):
            assert norm is not None  # DFlash layers always have them
            norm.scale[...] = jnp.full_like(norm.scale[...], _typical_size(projection.weight[...]))


def _typical_size(weight: Float[Array, "out in"]) -> Float[Array, ""]:
    """Return the root mean square of a projection's outputs, for inputs of mean square one."""
    return jnp.sqrt(jnp.mean(jnp.sum(weight**2, axis=1)))
