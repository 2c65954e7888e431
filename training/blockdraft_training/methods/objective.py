"""The labels of a draft block, and its loss.

Position-weighted cross-entropy over a hot vocabulary: w_k = exp(-(k-1)/γ), since a position
counts only if all before it were right (arXiv 2602.06036, appendix A.1). The label may be mixed
with the target's own distribution over its likeliest tokens (distillation).
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from blockdraft_training.batches import SequenceBatch
from blockdraft_training.target import HotVocabulary

# α of `survival_weights`, as published.
_SURVIVAL_FLOOR = 0.5


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of the slots of blocks, over hot indices."""

    tokens: Array  # Int[Array, "batch blocks slots"], the true token; -1 if it is not hot
    inside: Array  # Bool[Array, "batch blocks slots"], whether the completion reaches that far
    soft_tokens: Array  # Int[Array, "batch blocks slots teacher"]
    soft_probs: Array  # Float[Array, "batch blocks slots teacher"], 0 for tokens that are not hot


@dataclass(frozen=True, slots=True)
class BlockMetrics:
    """Sums over blocks; adding two gives those of both."""

    # Any: JAX also rebuilds pytrees of descriptions of arrays.
    loss: Any  # weighted loss
    weight: Any  # sum of the weights, to divide the loss by
    correct: Any  # Float[Array, "slots"], slots whose likeliest token is the true one
    seen: Any  # Float[Array, "slots"], slots inside a completion
    gained: Any  # tokens gained, accepted ones and one more for each block
    blocks: Any  # whole blocks
    gradient_norm: Any  # of each step

    @classmethod
    def zero(cls, slots: int) -> "BlockMetrics":
        """Return the sums over no block."""
        # Separate arrays, not two shared ones: a step donates each.
        shapes = ((), (), (slots,), (slots,), (), (), ())
        return cls(*(jnp.zeros(shape) for shape in shapes))


jax.tree_util.register_dataclass(BlockMetrics)


def sample_anchors(
    key: PRNGKeyArray,
    starts: Int[Array, " batch"],
    ends: Int[Array, " batch"],
    blocks: int,
    length: int,
) -> Int[Array, "batch blocks"]:
    """Draw distinct anchors among each completion's tokens that have a token after them.

    Where a sequence has fewer candidates than `blocks`, the rest are at `length`.
    """
    positions = jnp.arange(length)
    candidate = (positions[None] >= starts[:, None]) & (positions[None] < ends[:, None] - 1)
    drawn = jnp.where(candidate, jax.random.uniform(key, candidate.shape), -1.0)
    scores, anchors = jax.lax.top_k(drawn, min(blocks, length))
    return jnp.where(scores >= 0, anchors, length).astype(jnp.int32)


def labels_of(
    batch: SequenceBatch,
    anchors: Int[Array, "batch blocks"],
    slots: int,
    hot: HotVocabulary,
) -> Labels:
    """Return the labels of the slots after each anchor."""
    positions = anchors[..., None] + 1 + jnp.arange(slots)[None, None, :]
    inside = positions < batch.ends[:, None, None]
    tokens = _at(batch.token_ids, positions)
    in_completion = positions - batch.starts[:, None, None]
    soft = hot.index[_at(batch.teacher_ids, in_completion)]
    logits = _at(batch.teacher_logits, in_completion).astype(jnp.float32)
    logits = jnp.where(soft >= 0, logits, -jnp.inf)
    # Some target choice is nearly always hot; where none is, the row has no soft label.
    probs = jnp.where(jnp.isfinite(logits).any(-1, keepdims=True), jax.nn.softmax(logits), 0.0)
    return Labels(hot.index[tokens], inside, jnp.maximum(soft, 0), probs)


def _at(values: Array, positions: Int[Array, "batch blocks slots"]) -> Array:
    """Return `values[row, position]`, of shape [batch, blocks, slots, ...]; clips positions."""
    clipped = jnp.clip(positions, 0, values.shape[1] - 1)
    rows = jnp.arange(len(positions))[:, None, None]
    return values[rows, clipped]


def block_loss(
    logits: Float[Array, "batch blocks slots hot"],
    labels: Labels,
    *,
    decay: float,
    distillation: float,
    survival: bool = False,
) -> tuple[Float[Array, ""], BlockMetrics]:
    """Return the loss, averaged by weight, and the sums it is made of.

    Positions are weighed by γ, `decay`, or by `survival_weights`; `distillation` is the share of
    the target's distribution in the label.
    """
    slots = logits.shape[2]
    logits = logits.astype(jnp.float32)
    hard = jnp.take_along_axis(logits, jnp.maximum(labels.tokens, 0)[..., None], axis=-1)[..., 0]
    label_logits = hard
    if distillation > 0:
        soft = jnp.take_along_axis(logits, labels.soft_tokens, axis=-1)
        has_soft = labels.soft_probs.sum(-1) > 0
        expected = (soft * labels.soft_probs).sum(-1)
        mixed = (1 - distillation) * hard + distillation * expected
        label_logits = jnp.where(has_soft, mixed, hard)
    top = logits.max(axis=-1)
    total = jax.nn.logsumexp(logits, axis=-1)
    losses = total - label_logits
    usable = labels.inside & (labels.tokens >= 0)
    if survival:
        by_position = survival_weights(jnp.where(usable, jnp.exp(hard - total), 0.0))
    else:
        by_position = jnp.exp(-jnp.arange(slots, dtype=jnp.float32) / decay)[None, None, :]
    weights = usable.astype(jnp.float32) * by_position
    loss, weight = (losses * weights).sum(), weights.sum()
    # By value: argmax takes as long as the loss itself. Of equal logits all count as likeliest.
    correct = usable & (hard == top)
    whole = labels.inside.all(-1)
    accepted = jnp.cumprod(correct.astype(jnp.int32), axis=-1).sum(-1)
    gained = jnp.where(whole, accepted + 1, 0).sum()
    metrics = BlockMetrics(
        loss,
        weight,
        correct.sum((0, 1)).astype(jnp.float32),
        labels.inside.sum((0, 1)).astype(jnp.float32),
        gained.astype(jnp.float32),
        whole.sum().astype(jnp.float32),
        jnp.zeros(()),
    )
    return loss / jnp.maximum(weight, 1e-6), metrics


def survival_weights(
    probabilities: Float[Array, "batch blocks slots"],
) -> Float[Array, "batch blocks slots"]:
    """Return the expected length that a block loses if a position is wrong.

    w_j = Σ_{m ≥ j} Π_{i ≤ m} ((1 - α) q_i + α) for position j, by the drafter's own probabilities q
    of the true tokens (D-PACE, arXiv 2605.18810). No gradient.
    """
    smoothed = (1 - _SURVIVAL_FLOOR) * jax.lax.stop_gradient(probabilities) + _SURVIVAL_FLOOR
    survived = jnp.cumprod(smoothed, axis=-1)
    return jnp.cumsum(survived[..., ::-1], axis=-1)[..., ::-1]
