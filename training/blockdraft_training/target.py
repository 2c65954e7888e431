"""The frozen target's pass over a corpus, and the parts of the target that a step reads.

A drafter sees the target only through its features, in training as in serving.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import EmbeddingAndHead
from blockdraft_training.batches import SequenceBatch


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """The values to compute for each token."""

    layer_ids: tuple[int, ...]  # target layers whose outputs, side by side, are a feature
    # How many of the target's likeliest next tokens are kept for distillation.
    teacher_size: int = 16


def target_pass(
    decoder: Decoder,
    token_ids: Int[Array, "batch length"],
    completion_starts: Int[Array, " batch"],
    completion_length: int,
    spec: FeatureSpec,
) -> tuple[
    Float[Array, "batch length width"],
    Int[Array, "batch completion teacher"],
    Float[Array, "batch completion teacher"],
]:
    """Return features, and the likeliest tokens and logits at each position of the completions.

    Values beyond a padded sequence's end mean nothing. Completions start at 1 at least. Only
    `completion_length` positions of each are scored: head and top-k are a third of the work.
    """
    batch, length = token_ids.shape
    positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), batch)
    caches = [None] * decoder.config.num_layers
    attend = DenseAttend(batch, length)
    output = decoder(token_ids.reshape(-1), positions, caches, attend, spec.layer_ids)
    # The choice of a token is scored at the position before it.
    scored = completion_starts[:, None] - 1 + jnp.arange(completion_length)[None, :]
    hidden = output.hidden.reshape(batch, length, -1)
    hidden = jnp.take_along_axis(hidden, scored[..., None], axis=1, mode="clip")
    logits = decoder.logits(hidden.reshape(batch * completion_length, -1))
    best, ids = jax.lax.top_k(logits, spec.teacher_size)
    shape = (batch, completion_length, spec.teacher_size)
    features = output.captured.reshape(batch, length, -1)
    return features, ids.reshape(shape), best.reshape(shape)


@dataclass(frozen=True, slots=True)
class HotVocabulary:
    """The token ids a loss is computed over."""

    # Any: JAX also rebuilds pytrees of descriptions of arrays.
    ids: Any  # Int[Array, "hot"], rising
    index: Any  # Int[Array, "vocab"], place in `ids`, or -1

    @classmethod
    def of(cls, counts: Int[np.ndarray, " vocab"], size: int) -> "HotVocabulary":
        """Return the `size` most frequent ids; all if `size` is 0 or above their number."""
        # Stable: among equals the smaller id, so that every run picks the same ones.
        chosen = np.argsort(-counts, kind="stable")[: size or None]
        return cls.with_ids(np.sort(chosen), len(counts))

    @classmethod
    def with_ids(cls, ids: Int[np.ndarray, " hot"], vocab_size: int) -> "HotVocabulary":
        """Return the vocabulary of these ids, which must rise."""
        index = np.full(vocab_size, -1, np.int32)
        index[ids] = np.arange(len(ids), dtype=np.int32)
        return cls(jnp.asarray(ids, jnp.int32), jnp.asarray(index))

    @property
    def draft_ids(self) -> np.ndarray | None:
        """The ids that a drafter of this vocabulary can draft; None for all."""
        return np.asarray(self.ids) if len(self.ids) < len(self.index) else None


def frequencies(completions: Sequence[Sequence[int]], vocab_size: int) -> Int[np.ndarray, " vocab"]:
    """Count how often each id occurs in some completions."""
    return np.bincount(np.concatenate([np.asarray(a) for a in completions]), minlength=vocab_size)


@dataclass(frozen=True, slots=True)
class Frozen:
    """The target, as far as a step needs it."""

    # Any: JAX also rebuilds pytrees of descriptions of arrays.
    embedding: Any  # Float[Array, "vocab hidden"]
    head: Any  # Float[Array, "hot hidden"], the output head's rows of the hot vocabulary
    hot: HotVocabulary  # the hot vocabulary
    # State of the whole decoder if features are computed in the step, else None.
    decoder: Any = None


for _pytree in (HotVocabulary, Frozen):
    jax.tree_util.register_dataclass(_pytree)


def freeze(decoder: Decoder, hot: HotVocabulary, *, online: bool) -> Frozen:
    """Return the parts of a target that a step reads; all of it if features are made online."""
    embedding = decoder.embedding.table[...]
    head = None if decoder.head is None else decoder.head.weight[...]
    shared = freeze_shared(EmbeddingAndHead(embedding, head), hot)
    return replace(shared, decoder=nnx.state(decoder)) if online else shared


def freeze_shared(shared: EmbeddingAndHead, hot: HotVocabulary) -> Frozen:
    """Return the parts that a step reads, from the embedding and head that drafters share."""
    head = shared.embedding if shared.head is None else shared.head
    return Frozen(shared.embedding, head[hot.ids], hot)


# Adds features and teacher to a batch, given the decoder's state.
CompleteBatch = Callable[[Any, SequenceBatch], SequenceBatch]


def as_cached(_: Any, batch: SequenceBatch) -> SequenceBatch:
    """Add nothing: the batch came with its features."""
    return batch


def computed_online(decoder: Decoder, spec: FeatureSpec, completion_length: int) -> CompleteBatch:
    """Return a function that runs the target in the step, with the weights that it is given."""
    graph = nnx.graphdef(decoder)

    def complete(state: Any, batch: SequenceBatch) -> SequenceBatch:
        # Gradients stop here by themselves: nothing in the target is differentiated.
        features, ids, logits = target_pass(
            nnx.merge(graph, state), batch.token_ids, batch.starts, completion_length, spec
        )
        return replace(batch, features=features, teacher_ids=ids, teacher_logits=logits)

    return complete
