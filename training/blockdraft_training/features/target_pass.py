"""The target's forward pass over whole sequences: the features drafts are made from, its choices.

A drafter sees the target only through these, in training as in serving.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.model import Decoder

_LENGTH_STEP = 32


def padded_length(tokens: int) -> int:
    """Return a length rounded up, so that few shapes are compiled."""
    return -(-tokens // _LENGTH_STEP) * _LENGTH_STEP


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """What is computed of each token.

    Attributes:
        layer_ids: Target layers whose outputs, side by side, are a feature.
        teacher_size: How many of the target's likeliest next tokens are kept for distillation.
    """

    layer_ids: tuple[int, ...]
    teacher_size: int = 16


@dataclass(frozen=True, slots=True)
class TargetPass:
    """The target's forward pass over a batch of whole sequences.

    Attributes:
        features: Float[Array, "batch length width"].
        teacher_ids: Int[Array, "batch answer teacher"], the likeliest tokens at each position of
            the answer, falling.
        teacher_logits: Float[Array, "batch answer teacher"].
    """

    features: Array
    teacher_ids: Array
    teacher_logits: Array


jax.tree_util.register_dataclass(TargetPass)


def target_pass(
    decoder: Decoder,
    token_ids: Int[Array, "batch length"],
    answer_starts: Int[Array, " batch"],
    answer_length: int,
    spec: FeatureSpec,
) -> TargetPass:
    """Run the target over padded sequences; what follows a sequence's end means nothing.

    Args:
        decoder: The target.
        token_ids: Prompts and answers.
        answer_starts: Position of each answer's first token, at least 1.
        answer_length: Positions of each answer to score; head and top-k are a third of the work.
        spec: What to return.
    """
    batch, length = token_ids.shape
    positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), batch)
    caches = [None] * decoder.config.num_layers
    attend = DenseAttend(batch, length)
    output = decoder(token_ids.reshape(-1), positions, caches, attend, spec.layer_ids)
    # The choice of a token is scored at the position before it.
    scored = answer_starts[:, None] - 1 + jnp.arange(answer_length)[None, :]
    hidden = output.hidden.reshape(batch, length, -1)
    hidden = jnp.take_along_axis(hidden, scored[..., None], axis=1, mode="clip")
    logits = decoder.logits(hidden.reshape(batch * answer_length, -1))
    best, ids = jax.lax.top_k(logits, spec.teacher_size)
    shape = (batch, answer_length, spec.teacher_size)
    features = output.captured.reshape(batch, length, -1)
    return TargetPass(features, ids.reshape(shape), best.reshape(shape))
