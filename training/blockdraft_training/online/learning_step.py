"""A step of learning as what is compiled: micro-batches whose gradients add up, and the update.

The computations are those of `train dflash`. What is different: gradients of micro-batches are
added up, so that a step can wait between them; a step whose loss or gradients are no numbers is
not made; and with projected features the projection has no part in it and stays as it is.

What learns on a device and what is only compiled, for chips that are not there, are these lines.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_training.features.batches import SequenceBatch
from blockdraft_training.features.frozen import Frozen, as_cached
from blockdraft_training.loop.optimizer import make_optimizer
from blockdraft_training.loop.step import TrainState, make_gradients, updated
from blockdraft_training.methods.objective import BlockMetrics
from blockdraft_training.methods.recipe import AnyRecipe

# What projected features went through already: DFlash's first linear map and its norm.
_PROJECTION = frozenset({"fc", "hidden_norm"})


@dataclass(frozen=True, slots=True)
class LearningStep:
    """The two programs of a step.

    Attributes:
        accumulate: Adds a micro-batch: of weights, target, batch, gradients and sums so far, and
            a number for its anchors, to gradients and sums. What was so far is donated.
        finish: Makes the step: of the state, gradients, sums, the number of micro-batches, and
            what the rate is multiplied by, to the state, which keeps the sums. It is donated.
    """

    accumulate: jax.stages.Wrapped
    finish: jax.stages.Wrapped


def untouched(*, projected: bool) -> frozenset[str]:
    """Return the parts of a drafter that are not learned, given whether features come projected."""
    return _PROJECTION if projected else frozenset()


def learning_optimizer(
    recipe: AnyRecipe, learning_rate: float, warmup_steps: int
) -> optax.GradientTransformation:
    """Return the optimizer of a run that does not end: its rate rises once and stays there."""
    schedule = optax.warmup_constant_schedule(0.0, learning_rate, warmup_steps)
    return make_optimizer(recipe.settings, schedule)


def make_learning_step(
    recipe: AnyRecipe,
    model: DraftModel,
    optimizer: optax.GradientTransformation,
    *,
    dtype: jnp.dtype,
    places: TrainState | None = None,
) -> LearningStep:
    """Return the programs of a step, which are compiled for each shape of a batch.

    Args:
        recipe: The method and what its steps are told.
        model: The drafter; weights that are not learned are its own.
        optimizer: Of the weights.
        dtype: Of activations; weights, gradients and the optimizer's state are float32.
        places: Where each part of the state lies; None for the default device.
    """
    gradients_of = make_gradients(recipe, model, complete=as_cached, dtype=dtype)
    sums = None if places is None else (places.params, places.metrics)

    @partial(jax.jit, donate_argnums=(3, 4), out_shardings=sums)
    def accumulate(
        params: Any,
        frozen: Frozen,
        batch: SequenceBatch,
        gradients: Any,
        metrics: BlockMetrics,
        number: jax.Array,
    ) -> tuple[Any, BlockMetrics]:
        more = gradients_of(params, frozen, batch, number)
        total: tuple[Any, BlockMetrics] = jax.tree.map(jnp.add, (gradients, metrics), more)
        return total

    @partial(jax.jit, donate_argnums=0, out_shardings=places)
    def finish(
        state: TrainState, gradients: Any, metrics: BlockMetrics, count: Any, rate: Any
    ) -> TrainState:
        mean = jax.tree.map(lambda total: total / count, gradients)
        after = updated(state, optimizer, mean, metrics, rate)
        sound = jnp.isfinite(after.metrics.gradient_norm) & jnp.isfinite(metrics.loss)
        kept: TrainState = jax.tree.map(partial(jnp.where, sound), after, state)
        # The sums are what tells; the next step begins with none.
        return replace(kept, metrics=after.metrics)

    return LearningStep(accumulate, finish)
