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

from blockdraft_training.features.frozen import Completion, Frozen
from blockdraft_training.methods.blocks import SequenceBatch, sample_anchors
from blockdraft_training.methods.objective import BlockMetrics, block_loss, labels_of
from blockdraft_training.methods.recipe import DraftModel, Recipe
from blockdraft_training.methods.scores import draft_logits, tokens_before


@dataclass(frozen=True, slots=True)
class Objective:
    """How blocks are drawn and judged.

    Attributes:
        blocks_per_sequence: Anchors drawn from each sequence.
        decay: γ of the position weights.
        distillation: Share of the target's distribution in the label.
    """

    blocks_per_sequence: int
    decay: float
    distillation: float


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
    recipe: Recipe,
    model: DraftModel,
    optimizer: optax.GradientTransformation,
    objective: Objective,
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
        objective: Anchors and loss.
        complete: Adds the features a batch lacks.
        dtype: Of activations and the weights' copies they meet; the weights stay float32.
    """
    graph, abstract = nnx.split(model)
    slots = model.config.block_size - 1

    def loss_of(
        params: Any, frozen: Frozen, batch: SequenceBatch, step: Array
    ) -> tuple[Float[Array, ""], BlockMetrics]:
        batch = complete(frozen.decoder, batch)
        cast = jax.tree.map(lambda weight: weight.astype(dtype), params)
        state = jax.tree.map(lambda leaf: leaf, abstract)
        nnx.replace_by_pure_dict(state, cast)
        drafter = nnx.merge(graph, state)
        key = jax.random.fold_in(jax.random.key(recipe.settings.seed), step)
        length = batch.token_ids.shape[1]
        anchors = sample_anchors(
            key, batch.starts, batch.ends, objective.blocks_per_sequence, length
        )
        hidden = recipe.draft(drafter, frozen.embedding, batch, anchors)
        before = tokens_before(batch.token_ids, anchors, slots)
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits = draft_logits(drafter, frozen.head, rows, before.reshape(-1))
        logits = logits.reshape(*before.shape, -1)
        labels = labels_of(batch, anchors, slots, frozen.hot)
        return block_loss(
            logits, labels, decay=objective.decay, distillation=objective.distillation
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
