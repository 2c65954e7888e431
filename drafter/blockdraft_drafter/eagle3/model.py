"""The EAGLE-3 drafter, as published: one decoder layer that feeds on its own output.

Entry i joins the feature of position i with the token at i + 1 and predicts the token at i + 2.
Where the target has not been yet, the layer's own output stands in for the feature.

EAGLE-3.1 normalizes more: each captured output of the target before they are joined, and the
layer's own output before it stands in for a feature.

Sources: SafeAILab/EAGLE, `eagle/model/cnets.py` (arXiv 2503.01840); EAGLE-3.1 (arXiv 2605.09992).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_drafter.compiled import buffer
from blockdraft_drafter.compiled.attention import ChainAttend
from blockdraft_drafter.compiled.buffer import BlockKV, CacheView, LayerKV
from blockdraft_drafter.compiled.definition import DraftModel, MethodDefinition
from blockdraft_drafter.compiled.packing import PackedBlocks, PackedFeatures
from blockdraft_drafter.compiled.programs import (
    Drafted,
    DraftPrograms,
    DraftWeights,
    draft_tokens,
    whole,
)
from blockdraft_drafter.compiled.recycling import with_recycled
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_models.decoder.attention import Attend, LayerCache
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.layer import LAYER_SCOPE, AttentionProjections, RMSNorm
from blockdraft_models.decoder.linear import Linear
from blockdraft_models.decoder.mlp import GatedMLP
from blockdraft_models.decoder.rope import rotary_tables, rotate
from blockdraft_models.decoder.sharding import EMBED


class Eagle3(DraftModel):
    """The draft model; the embedding is the target's, and so is the head unless it has its own.

    Knows neither batches nor buffers: entries are flat and attention is passed in, so serving and
    training run the same layer.
    """

    config: Eagle3Config

    def __init__(
        self, config: Eagle3Config, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
    ) -> None:
        """Initialize random weights; randomness is that of the stream `params`."""
        decoder = config.decoder
        hidden, eps = decoder.hidden_size, decoder.rms_norm_eps
        self.config = config
        axes = (EMBED, "features")
        self.fc = Linear(config.feature_width, hidden, axes, bias=False, dtype=dtype, rngs=rngs)
        self.fc_norm: nnx.List[RMSNorm] | None = None
        if config.fc_norm:
            norms = [RMSNorm(hidden, eps, dtype=dtype) for _ in config.target_layer_ids]
            self.fc_norm = nnx.data(nnx.List(norms))
        self.input_norm: RMSNorm | None = None
        if config.norm_before_fc:
            self.input_norm = nnx.data(RMSNorm(config.feature_width, eps, axis=None, dtype=dtype))
        self.embedding_norm = RMSNorm(hidden, eps, dtype=dtype)
        self.hidden_norm = RMSNorm(hidden, eps, dtype=dtype)
        self.attention = AttentionProjections(
            decoder, input_size=2 * hidden, dtype=dtype, rngs=rngs
        )
        self.mlp_norm = RMSNorm(hidden, eps, dtype=dtype)
        self.mlp = GatedMLP(decoder, dtype=dtype, rngs=rngs)
        # Before the head; the next step takes its input, or its output if `norm_output`.
        self.norm = RMSNorm(hidden, eps, dtype=dtype)

    @property
    def projection(self) -> FeatureProjection:
        """Feature to hidden state."""
        weight = self.fc.weight[...]
        if self.input_norm is not None:
            scale = self.input_norm.scale[...]
            return FeatureProjection(weight, None, self.norm.eps, scale, joint=True)
        if self.fc_norm is None:
            return FeatureProjection(weight)
        scale = jnp.concatenate([norm.scale[...] for norm in self.fc_norm])
        return FeatureProjection(weight, None, self.norm.eps, scale)

    def keys_values(
        self,
        embedded: Float[Array, "entries hidden"],
        hidden: Float[Array, "entries hidden"],
        positions: Int[Array, " entries"],
    ) -> tuple[
        Float[Array, "entries kv_heads head_dim"], Float[Array, "entries kv_heads head_dim"]
    ]:
        """Return the rotated keys and the values of entries, which later entries see.

        `embedded` is the embedding of the token after each position, `hidden` its projected
        feature.
        """
        decoder = self.config.decoder
        shape = (embedded.shape[0], decoder.num_kv_heads, decoder.head_dim)
        joined = self._join(embedded, self.hidden_norm(hidden))
        key, value = self.attention.key_and_value
        keys = key(joined).reshape(shape)
        if self.attention.key_norm is not None:
            keys = self.attention.key_norm(keys)
        rotated = rotate(keys, *rotary_tables(decoder, positions))
        return rotated, value(joined).reshape(shape)

    def step(
        self,
        embedded: Float[Array, "entries hidden"],
        hidden: Float[Array, "entries hidden"],
        positions: Int[Array, " entries"],
        cache: LayerCache,
        attend: Attend[LayerCache],
    ) -> tuple[Float[Array, "entries hidden"], LayerCache]:
        """Run the layer; return outputs, of which `norm` makes inputs of the head, and the cache.

        `embedded` is the embedding of the token after each position, `hidden` its projected feature
        or the output of the step before; `attend` sees the earlier entries and the entry itself.
        """
        normalized = self.hidden_norm(hidden)
        residual = normalized if self.config.norm_before_residual else hidden
        rotary = rotary_tables(self.config.decoder, positions)
        with jax.named_scope(LAYER_SCOPE):
            joined = self._join(embedded, normalized)
            attended, cache = self.attention(joined, rotary, cache, attend)
            x = residual + attended
            return x + self.mlp(self.mlp_norm(x)), cache

    def _join(
        self,
        embedded: Float[Array, "entries hidden"],
        normalized: Float[Array, "entries hidden"],
    ) -> Float[Array, "entries twice"]:
        return jnp.concatenate([self.embedding_norm(embedded), normalized], axis=-1)


class Eagle3Cache(NamedTuple):
    """The draft KV cache of all slots; a pytree."""

    layer: LayerKV  # keys and values of every committed position
    # Float[Array, "slots hidden"], the projected feature of the last one, where drafting begins.
    latest: Array


class _Pass(NamedTuple):
    """The result of one pass: a token for each block, and the start of the next pass."""

    token: Array
    log_chance: Array
    hidden: Array
    own_kv: BlockKV | None


@dataclass(frozen=True, slots=True)
class Eagle3Programs(DraftPrograms):
    """The programs of EAGLE-3."""

    token_by_token: ClassVar[bool] = True

    def cache(self) -> Eagle3Cache:
        """Return shape, type and place of the draft KV cache, all slots."""
        [layer] = self.layer_caches()
        shape = (self.capacity.max_sequences, self.decoder.hidden_size)
        # A shape where the array itself is declared.
        latest: Any = whole(shape, self.dtype, self.placement)
        return Eagle3Cache(layer, latest)

    def append(self, weights: DraftWeights, cache: Eagle3Cache, new: PackedFeatures) -> Eagle3Cache:
        """Project features and store them in the draft KV cache."""
        model: Eagle3 = nnx.merge(self.graph, weights.model)
        hidden = self.hidden_states(model.projection, new)
        embedded = weights.target.embedding[new.next_tokens]
        keys, values = model.keys_values(embedded, hidden, new.positions)
        # A slot's positions lie side by side; drafting begins at the last of each slot.
        count = new.slots.shape[0]
        into_slot = new.slots[None, :] == jnp.arange(cache.latest.shape[0])[:, None]
        last = jnp.max(jnp.where(into_slot, jnp.arange(count)[None, :], -1), axis=1)
        newest = hidden[jnp.maximum(last, 0)].astype(cache.latest.dtype)
        latest = jnp.where((last >= 0)[:, None], newest, cache.latest)
        layer = buffer.write(cache.layer, new.slots, new.positions, keys, values)
        return Eagle3Cache(layer, latest)

    def append_and_draft(
        self,
        weights: DraftWeights,
        cache: Eagle3Cache,
        new: PackedFeatures,
        blocks: PackedBlocks,
    ) -> tuple[Eagle3Cache, Drafted]:
        """Append `new`, then draft `blocks` token by token over contexts that include it.

        A block ends with as many tokens as are wanted of it, or where it is too unlikely that all
        of them are right. One executable serves all numbers of tokens: it skips passes that no
        block needs, and their results mean nothing.
        """
        cache = self.append(weights, cache, new)
        model: Eagle3 = nnx.merge(self.graph, weights.model)
        _, target, draft_ids = weights
        # The last committed position is the first pass's own entry, not its context.
        before = jnp.maximum(blocks.lengths - 1, 0)
        attend = ChainAttend(CacheView(cache.layer, blocks.slots, before), self.sharding)
        hidden = cache.latest[blocks.slots].astype(target.embedding.dtype)
        hidden = jnp.where((blocks.lengths > 0)[:, None], hidden, jnp.zeros_like(hidden))
        sampling = jax.tree.map(jnp.asarray, blocks.sampling)

        def one_pass(index: int, token: Array, hidden: Array, own_kv: BlockKV | None) -> _Pass:
            hidden, own_kv = model.step(
                target.embedding[token], hidden, before + index, own_kv, attend
            )
            # The first drafted token is the one after the anchor.
            position = jnp.asarray(blocks.lengths) + 1 + index
            normalized = model.norm(hidden)
            logits = with_recycled(target.logits(normalized), blocks, token, position)
            if model.config.norm_output:
                hidden = normalized
            return _Pass(*draft_tokens(logits, position, sampling, draft_ids), hidden, own_kv)

        last = one_pass(0, jnp.asarray(blocks.anchors), hidden, None)
        passes, chance = [last], jnp.exp(last.log_chance)
        counts = jnp.minimum(blocks.draft_lengths, 1)
        for index in range(1, model.config.block_size - 1):
            goes_on = (
                (counts == index)
                & (index < blocks.draft_lengths)
                & (chance >= blocks.least_chances)
            )
            make = partial(one_pass, index)
            operands = last.token, last.hidden, last.own_kv
            last = jax.lax.cond(jnp.any(goes_on), make, _no_pass, *operands)
            passes.append(last)
            counts += goes_on.astype(counts.dtype)
            chance *= jnp.exp(last.log_chance)
        return cache, Drafted(
            jnp.stack([draft_pass.token for draft_pass in passes], axis=1), counts
        )


def _no_pass(token: Array, hidden: Array, own_kv: BlockKV) -> _Pass:
    """Return a result without meaning, in the form of a pass."""
    keys, values = (jnp.pad(part, ((0, 0), (0, 1), (0, 0), (0, 0))) for part in own_kv)
    return _Pass(token, jnp.zeros(token.shape, jnp.float32), hidden, (keys, values))


EAGLE3: MethodDefinition[Eagle3] = MethodDefinition(
    "eagle3", "EAGLE-3", Eagle3Config, Eagle3, Eagle3Programs, reads_tokens=True, separate_head=True
)
