"""One optimizer step: anchors drawn, blocks drafted, loss, gradients, update.

Nothing comes back to the host: metrics add up on the device until they are read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, DTypeLike, Float
from optax import contrib

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_training.batches import SequenceBatch
from blockdraft_training.methods.objective import (
    BlockMetrics,
    block_loss,
    labels_of,
    sample_anchors,
)
from blockdraft_training.methods.recipe import (
    AnyRecipe,
    draft_logits,
    tokens_before,
    with_weights,
)
from blockdraft_training.settings import WARMUP_SHARE, TrainSettings
from blockdraft_training.target import CompleteBatch, Frozen

_CLIP_NORM = 1.0
# Of the peak; the last steps still move.
_FINAL_RATE_SHARE = 0.02
# Few steps, large batches: a short memory of squared gradients follows them better.
_SQUARES_DECAY = 0.95
# Muon's updates are made as large as AdamW's usually are (arXiv 2502.16982, section 2.2), so that
# one rate serves both.
_UPDATE_RMS = 0.2


@dataclass(frozen=True, slots=True)
class TrainState:
    """Everything that changes; all of it goes into a checkpoint."""

    # Any: JAX also rebuilds pytrees of descriptions of arrays.
    step: Any  # Int[Array, ""], steps made
    params: Any  # the drafter's weights, float32
    optimizer: Any  # its state
    metrics: BlockMetrics  # sums since they were last read


jax.tree_util.register_dataclass(TrainState)

# Gradients and sums of a batch, given weights, the target, the batch and a number for its anchors.
Gradients = Callable[[Any, Frozen, SequenceBatch, Array], tuple[Any, BlockMetrics]]


def cosine(settings: TrainSettings) -> optax.Schedule:
    """Return the rates of a run that ends: a cosine with warm-up (arXiv 2602.06036, app. A.1)."""
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=settings.learning_rate,
        warmup_steps=max(1, round(settings.steps * WARMUP_SHARE)),
        decay_steps=max(2, settings.steps),
        end_value=settings.learning_rate * _FINAL_RATE_SHARE,
    )


def make_optimizer(
    settings: TrainSettings, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Return AdamW or Muon, at the rates of `schedule`, with clipped gradients."""
    decay = settings.weight_decay
    if settings.optimizer == "muon":
        rule = contrib.muon(
            schedule,
            weight_decay=decay,
            adam_b2=_SQUARES_DECAY,
            adam_weight_decay=decay,
            consistent_rms=_UPDATE_RMS,
            muon_weight_dimension_numbers=_matrices,
        )
    else:
        rule = optax.adamw(schedule, b2=_SQUARES_DECAY, weight_decay=decay)
    return optax.chain(optax.clip_by_global_norm(_CLIP_NORM), rule)


def _matrices(params: Any) -> Any:
    """Mark the weights that Muon orthogonalizes; None for the others, which AdamW moves.

    Tables that are looked up by token are no maps between spaces: most of their rows have no
    gradient in a step.
    """

    def mark(path: tuple[Any, ...], weight: jax.Array) -> contrib.MuonDimensionNumbers | None:
        table = any(getattr(key, "key", None) == "markov_head" for key in path)
        return contrib.MuonDimensionNumbers() if weight.ndim == 2 and not table else None

    return jax.tree_util.tree_map_with_path(mark, params)


def initial_state(
    model: DraftModel,
    optimizer: optax.GradientTransformation,
    frozen: frozenset[str] = frozenset(),
) -> TrainState:
    """Return the state before the first step, without the parts of the model in `frozen`."""
    weights = nnx.to_pure_dict(nnx.state(model))
    # Copied: a step donates them, and copied layers may share arrays with the target.
    params = jax.tree.map(jnp.copy, {k: v for k, v in weights.items() if k not in frozen})
    slots = model.config.block_size - 1
    return TrainState(
        jnp.zeros((), jnp.int32), params, optimizer.init(params), BlockMetrics.zero(slots)
    )


def make_gradients(
    recipe: AnyRecipe, model: DraftModel, *, complete: CompleteBatch, dtype: DTypeLike
) -> Gradients:
    """Return the function that gives the gradients of a batch and its sums.

    Anchors follow from the recipe's seed and the step: step n draws the same ones in every run. The
    weights given to the function replace those of the model. `dtype` is that of activations and of
    the copies of weights that they are multiplied with; the weights stay float32.
    """
    settings, rebuilt, slots = recipe.settings, with_weights(model), model.config.block_size - 1
    decay = recipe.decay(model.config.block_size)

    def loss_of(
        params: Any, frozen: Frozen, batch: SequenceBatch, step: Array
    ) -> tuple[Float[Array, ""], BlockMetrics]:
        batch = complete(frozen.decoder, batch)
        drafter = rebuilt(params, dtype)
        key = jax.random.fold_in(jax.random.key(settings.seed), step)
        length = batch.token_ids.shape[1]
        anchors = sample_anchors(
            key, batch.starts, batch.ends, settings.blocks_per_sequence, length
        )
        hidden = recipe.draft(drafter, frozen.embedding, batch, anchors)
        before = tokens_before(batch.token_ids, anchors, slots)
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits = draft_logits(drafter, frozen.head, rows, before.reshape(-1))
        logits = logits.reshape(*before.shape, -1)
        labels = labels_of(batch, anchors, slots, frozen.hot)
        return block_loss(
            logits,
            labels,
            decay=decay,
            distillation=settings.distillation,
            survival=settings.position_weights == "survival",
        )

    gradients: Gradients = jax.grad(loss_of, has_aux=True)
    return gradients


def updated(
    state: TrainState,
    optimizer: optax.GradientTransformation,
    gradients: Any,
    metrics: BlockMetrics,
) -> TrainState:
    """Return the state after a step."""
    # Summed, so that one bad step shows whenever the sums are read.
    metrics = replace(metrics, gradient_norm=optax.tree.norm(gradients))
    # optax divides floats by its integer step count, also where promotion is strict.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
    return TrainState(
        state.step + 1,
        optax.apply_updates(state.params, updates),
        optimizer_state,
        jax.tree.map(jnp.add, state.metrics, metrics),
    )


def make_step(
    recipe: AnyRecipe,
    model: DraftModel,
    optimizer: optax.GradientTransformation,
    *,
    complete: CompleteBatch,
    dtype: DTypeLike,
) -> jax.stages.Wrapped:
    """Return a whole step, compiled once; see `make_gradients` and `updated`."""
    gradients_of = make_gradients(recipe, model, complete=complete, dtype=dtype)

    @jax.jit(donate_argnums=0)
    def step(state: TrainState, frozen: Frozen, batch: SequenceBatch) -> TrainState:
        gradients, metrics = gradients_of(state.params, frozen, batch, state.step)
        return updated(state, optimizer, gradients, metrics)

    return step
