"""The training of EAGLE-3: the same objective over drafts made step by step, as in serving.

A draft from the anchor at position a starts at entry a - 1, the last whose feature the target has
given, and goes on from the layer's own outputs ("training-time test", arXiv 2503.01840, section
3.2). Its tokens are the true ones: a serving draft that was right so far holds the same, and
where it was wrong nothing after counts.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import EAGLE3, Eagle3
from blockdraft_models.decoder.attention import EVERYTHING, Reach
from blockdraft_models.decoder.experts import Experts
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_training.batches import SequenceBatch
from blockdraft_training.errors import TrainingError
from blockdraft_training.methods.recipe import COPY_NOISE, Recipe, pass_last_feature

# Each step weighs this much less than the one before (SafeAILab/EAGLE, `traineagle3`).
_STEP_WEIGHT = 0.8

# Keys and values, each [batch, blocks, entries, kv_heads, head_dim].
_OwnEntries = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class ChainsAttend:
    """Attention of each draft's next entry over its context and its own entries; an `Attend`.

    The context of a draft lies before its first entry, which `starts` says.
    """

    keys: Float[Array, "batch length kv_heads head_dim"]
    values: Float[Array, "batch length kv_heads head_dim"]
    starts: Int[Array, "batch blocks"]

    def nothing(self) -> _OwnEntries:
        """Return the own entries of a draft that has none yet."""
        shape = (*self.starts.shape, 0, *self.keys.shape[2:])
        empty = jnp.zeros(shape, self.keys.dtype)
        return empty, empty

    def __call__(
        self,
        q: Float[Array, "entries heads head_dim"],
        k: Float[Array, "entries kv_heads head_dim"],
        v: Float[Array, "entries kv_heads head_dim"],
        cache: _OwnEntries,
        reach: Reach = EVERYTHING,
        /,
    ) -> tuple[Float[Array, "entries heads head_dim"], _OwnEntries]:
        """Attend; the entry sees itself too. `cache` are the draft's own entries."""
        entries, heads, head_dim = q.shape
        batch, length, kv_heads, _ = self.keys.shape
        shape = (batch, self.starts.shape[1], 1, kv_heads)
        own_keys = jnp.concatenate([cache[0], k.reshape(*shape, head_dim)], axis=2)
        own_values = jnp.concatenate([cache[1], v.reshape(*shape, head_dim)], axis=2)
        queries = q.reshape(*shape[:2], kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
        context_scores, own_scores = (
            jnp.einsum(spelling, queries, keys, preferred_element_type=jnp.float32)
            for spelling, keys in (
                ("bnkgd,blkd->bkgnl", self.keys),
                ("bnkgd,bnskd->bkgns", own_keys),
            )
        )
        visible = jnp.arange(length)[None, None, :] < self.starts[..., None]
        context_scores = jnp.where(visible[:, None, None], context_scores, -jnp.inf)
        scores = jnp.concatenate([context_scores, own_scores], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        attended = jnp.einsum("bkgnl,blkd->bnkgd", weights[..., :length], self.values)
        attended += jnp.einsum("bkgns,bnskd->bnkgd", weights[..., length:], own_values)
        return attended.reshape(entries, heads, head_dim), (own_keys, own_values)


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
    # The projection may have another type, if it has no part in the step.
    dtype = model.norm.scale[...].dtype
    embedding, features = embedding.astype(dtype), batch.features.reshape(rows * length, -1)
    features = features.astype(dtype) if batch.projected else model.projection(features)
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
    hidden, entries = first.reshape(rows * blocks, width), attend.nothing()
    outputs = []
    for step in range(config.block_size - 1):
        tokens = jnp.take_along_axis(batch.token_ids, anchors + step, axis=1, mode="clip")
        hidden, entries = model.step(
            embedding[tokens.reshape(-1)], hidden, (starts + step).reshape(-1), entries, attend
        )
        outputs.append(model.norm(hidden).reshape(rows, blocks, width))
    return jnp.stack(outputs, axis=2)


@dataclass(frozen=True, slots=True)
class Eagle3Recipe(Recipe[Eagle3Config, Eagle3]):
    """The `Recipe` of EAGLE-3."""

    method: ClassVar = EAGLE3
    idea: ClassVar = (
        "Drafts token by token with one layer that starts from the target's hidden states and\n"
        "feeds on its own output (arXiv 2503.01840). Embedding and head are the target's."
    )
    projection_parts: ClassVar = frozenset({"fc"})

    draft = staticmethod(draft_chains)

    def default_config(self, target: Checkpoint) -> Eagle3Config:
        """Return the configuration of a drafter that starts without an earlier one."""
        try:
            return Eagle3Config.default_for(
                target.config,
                block_size=self.settings.block_size,
                target_layer_ids=self.settings.feature_layers,
            )
        except ValueError as error:
            raise TrainingError(str(error)) from error

    def from_target(self, config: Eagle3Config, decoder: Decoder) -> Eagle3:
        """Return a model in float32 whose layer is the target's last one.

        It reads the projected feature as the target's layer read its input; the weights for the
        token beside it start at random.
        """
        model = Eagle3(config, dtype=jnp.float32, rngs=nnx.Rngs(self.settings.seed))
        last = decoder.layers[len(decoder.layers) - 1]
        hidden = config.decoder.hidden_size
        if last.attention.key is None or last.attention.value is None:
            raise TrainingError("the target's last layer has no values to copy: start at random")
        for ours, theirs in zip(
            (model.attention.query, *model.attention.key_and_value),
            (last.attention.query, *last.attention.key_and_value),
            strict=True,
        ):
            weight = theirs.weight[...].astype(jnp.float32)
            if weight.shape != (ours.weight.shape[0], hidden):
                raise TrainingError(
                    f"the target's projection is {weight.shape}, the draft layer's takes {hidden}:"
                    " only layers of the target's shape can copy it"
                )
            noise = ours.weight[...] * COPY_NOISE
            ours.weight[...] = noise.at[:, hidden:].set(weight)
        if isinstance(last.mlp, Experts):
            raise TrainingError("a mixture of experts has no layer to copy: start at random")
        for ours, theirs in (
            (model.attention.output, last.attention.output),
            (model.mlp.gate, last.mlp.gate),
            (model.mlp.up, last.mlp.up),
            (model.mlp.down, last.mlp.down),
        ):
            ours.weight[...] = theirs.weight[...].astype(jnp.float32)
        for norm, of_target in (
            (model.hidden_norm, last.attention_norm),
            (model.mlp_norm, last.mlp_norm),
            (model.norm, decoder.norm),
        ):
            if of_target is not None:  # OLMo has none before attention and MLP
                norm.scale[...] = of_target.scale[...].astype(jnp.float32)
        pass_last_feature(model.fc, hidden)
        return model

    def from_drafter(
        self, config: Eagle3Config, earlier: Drafter[Eagle3], draft_ids: np.ndarray | None
    ) -> Eagle3:
        """Return a model that starts from an earlier drafter, whatever its draft vocabulary."""
        self.check_trainable(earlier, self.settings.init)
        earlier.model.config = config
        return earlier.model

    def check_trainable(self, drafter: Drafter[Eagle3], name: object) -> None:
        """Raise TrainingError if a drafter has parts that training knows nothing of."""
        config = drafter.model.config
        if drafter.embedding is not None or drafter.head is not None:
            raise TrainingError(f"{name} has an embedding or a head of its own")
        if config.fc_norm or config.norm_output or config.norm_before_fc:
            raise TrainingError(f"{name} has norms that cannot be trained here")

    def decay(self, block_size: int) -> float:
        """Return the γ that gives the published weights; they do not depend on the block size."""
        return -1 / math.log(_STEP_WEIGHT)
