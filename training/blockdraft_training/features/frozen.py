"""What training reads of the target and never changes, over the tokens that matter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Int

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import EmbeddingAndHead
from blockdraft_training.features.batches import SequenceBatch
from blockdraft_training.features.target_pass import FeatureSpec, target_pass

# Adds features and teacher to a batch, given the decoder's state.
Completion = Callable[[Any, SequenceBatch], SequenceBatch]


@dataclass(frozen=True, slots=True)
class HotVocabulary:
    """The token ids a loss is computed over.

    Attributes:
        ids: Int[Array, "hot"], rising.
        index: Int[Array, "vocab"], place in `ids`, or -1.
    """

    # Any: JAX also rebuilds pytrees of descriptions of arrays.
    ids: Any
    index: Any

    @classmethod
    def of(cls, counts: Int[np.ndarray, " vocab"], size: int) -> "HotVocabulary":
        """Return the `size` most frequent ids, all if there are no more."""
        size = min(size, len(counts))
        # Stable: among equals the smaller id, so that every run picks the same ones.
        return cls.with_ids(np.sort(np.argsort(-counts, kind="stable")[:size]), len(counts))

    @classmethod
    def with_ids(cls, ids: Int[np.ndarray, " hot"], vocab_size: int) -> "HotVocabulary":
        """Return these ids, which must rise."""
        index = np.full(vocab_size, -1, np.int32)
        index[ids] = np.arange(len(ids), dtype=np.int32)
        return cls(jnp.asarray(ids, jnp.int32), jnp.asarray(index))


jax.tree_util.register_dataclass(HotVocabulary)


def frequencies(answers: Sequence[Sequence[int]], vocab_size: int) -> Int[np.ndarray, " vocab"]:
    """Count how often each id occurs in some answers."""
    counts = np.zeros(vocab_size, np.int64)
    for answer in answers:
        np.add.at(counts, np.asarray(answer), 1)
    return counts


@dataclass(frozen=True, slots=True)
class Frozen:
    """The target, as far as a step needs it.

    Attributes:
        embedding: Float[Array, "vocab hidden"].
        head: Float[Array, "hot hidden"], the output head's rows of the hot vocabulary.
        hot: The hot vocabulary.
        decoder: State of the whole decoder if features are computed in the step, else None.
    """

    # Any: JAX also rebuilds pytrees of descriptions of arrays.
    embedding: Any
    head: Any
    hot: HotVocabulary
    decoder: Any = None


jax.tree_util.register_dataclass(Frozen)


def freeze(decoder: Decoder, hot: HotVocabulary, *, online: bool) -> Frozen:
    """Take from a target what a step needs; the whole of it if features are made online."""
    embedding = decoder.embedding.table[...]
    head = None if decoder.head is None else decoder.head.weight[...]
    shared = freeze_shared(EmbeddingAndHead(embedding, head), hot)
    return replace(shared, decoder=nnx.state(decoder)) if online else shared


def freeze_shared(shared: EmbeddingAndHead, hot: HotVocabulary) -> Frozen:
    """Take what a step needs from the parts of a target that its drafters share."""
    head = shared.embedding if shared.head is None else shared.head
    return Frozen(shared.embedding, head[hot.ids], hot)


def as_cached(_: Any, batch: SequenceBatch) -> SequenceBatch:
    """Add nothing: the batch came with its features."""
    return batch


def computed_online(decoder: Decoder, spec: FeatureSpec, answer_length: int) -> Completion:
    """Return the completion that runs the target inside the step.

    Args:
        decoder: The target; its weights are not used.
        spec: What to compute.
        answer_length: Longest answer of the corpus.
    """
    graph = nnx.graphdef(decoder)

    def complete(state: Any, batch: SequenceBatch) -> SequenceBatch:
        # Gradients stop here by themselves: nothing in the target is differentiated.
        out = target_pass(
            nnx.merge(graph, state), batch.token_ids, batch.starts, answer_length, spec
        )
        return replace(
            batch,
            features=out.features,
            teacher_ids=out.teacher_ids,
            teacher_logits=out.teacher_logits,
        )

    return complete
