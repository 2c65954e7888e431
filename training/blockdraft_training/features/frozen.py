"""What training reads of the target and never changes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
from flax import nnx

from blockdraft_models.decoder.model import Decoder
from blockdraft_training.features.features import FeatureSpec, target_pass
from blockdraft_training.methods.blocks import SequenceBatch
from blockdraft_training.methods.objective import HotVocabulary

# Adds features and teacher to a batch, given the decoder's state.
Completion = Callable[[Any, SequenceBatch], SequenceBatch]


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
    head = embedding if decoder.head is None else decoder.head.weight[...]
    state = nnx.state(decoder) if online else None
    return Frozen(embedding, head[hot.ids], hot, state)


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
