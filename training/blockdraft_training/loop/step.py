"""One optimizer step, compiled once: anchors drawn, blocks drafted, loss, gradients, update.

Nothing comes back to the host: metrics add up on the device until somebody reads them.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_training.features.batches import SequenceBatch
from blockdraft_training.features.frozen import Completion, Frozen
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


@dataclass(frozen=True, slots=True)
class TrainState:
    """Everything that changes; all of it goes into a checkpoint.

    Attributes:
        step: Int[Array, ""], steps made.
        params: The drafter's weights, float32.
        optimizer: Its state.
        metrics: Sums since they were last read.
    """

    # Any: JAX also rebuilds pytrees of descriptions of arrays.
    step: Any
    params: Any
    optimizer: Any
    metrics: BlockMetrics


jax.tree_util.register_dataclass(TrainState)


def initial_state(model: DraftModel, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the state before the first step."""
    # Copied: a step donates them, and copied layers may share arrays with the target.
    params = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(model)))
    slots = model.config.block_size - 1
    return TrainState(
        jnp.zeros((), jnp.int32), params, optimizer.init(params), BlockMetrics.zero(slots)
    )


def make_step(
    recipe: AnyRecipe,
    model: DraftModel,
    optimizer: optax.GradientTransformation,
    *,
    complete: Completion,
    dtype: DTypeLike,
) -> jax.stages.Wrapped:
    """Return the compiled step.

    Args:
        recipe: How the method drafts; its seed is that of the anchors: step n draws the same ones
            in every run.
        model: The drafter; its weights are not used.
        optimizer: Of the weights.
        complete: Adds the features a batch lacks.
        dtype: Of activations and the weights' copies they meet; the weights stay float32.
    """
    settings, rebuilt, slots = recipe.settings, with_weights(model), model.config.block_size - 1
    decay = settings.decay or recipe.default_decay(model.config.block_size)

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

    @jax.jit(donate_argnums=0)
    def step(state: TrainState, frozen: Frozen, batch: SequenceBatch) -> TrainState:
        gradients, metrics = jax.grad(loss_of, has_aux=True)(
            state.params, frozen, batch, state.step
        )
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

    return step
