"""The weights that are being learned: their steps, each made of micro-batches, and their τ.

The computations are those of `blockdraft train`, with these differences: gradients of
micro-batches are added up, so that a step can wait between them; a step whose loss or gradients are
not finite is discarded; and with projected features the projection is not trained.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_drafter.learning.comparison import SequenceGain
from blockdraft_training.batches import SequenceBatch
from blockdraft_training.loop.held_out import make_matches, walk
from blockdraft_training.loop.step import (
    TrainState,
    initial_state,
    make_gradients,
    make_optimizer,
    updated,
)
from blockdraft_training.methods.objective import BlockMetrics
from blockdraft_training.methods.recipe import AnyRecipe, with_weights
from blockdraft_training.online.traffic import Slice, padded
from blockdraft_training.target import Frozen, as_cached


class Candidate:
    """The state of the weights that are being learned, and all weights it began with."""

    def __init__(
        self,
        recipe: AnyRecipe,
        model: DraftModel,
        frozen: Frozen,
        *,
        projected: bool,
        learning_rate: float,
        warmup_steps: int,
        dtype: jnp.dtype,
    ) -> None:
        """Begin with the weights of a model, float32; `dtype` is that of activations.

        The rate rises for `warmup_steps` and then stays: the run does not end.
        """
        self._model, self._frozen, self.projected = model, frozen, projected
        self.slots = model.config.block_size - 1
        schedule = optax.warmup_constant_schedule(0.0, learning_rate, warmup_steps)
        optimizer = make_optimizer(recipe.settings, schedule)
        # Projected features went through these already.
        fixed_parts = recipe.projection_parts if projected else frozenset[str]()
        self.state = initial_state(model, optimizer, fixed_parts)
        self.start_params = nnx.to_pure_dict(nnx.state(model))
        self._matches_of = make_matches(recipe, model, complete=as_cached, dtype=dtype)
        self.accumulate = _make_accumulate(recipe, model, dtype)
        self._finish = _make_finish(optimizer)
        self._gradients, self._metrics, self._added = self._nothing()

    @property
    def step(self) -> int:
        """Steps made."""
        return int(self.state.step)

    def model(self) -> Any:
        """Return the drafter with the weights as they are now, float32."""
        params = {**self.start_params, **self.state.params}
        return with_weights(self._model)(jax.device_get(params), jnp.float32)

    def add(self, batch: SequenceBatch) -> None:
        """Add a micro-batch to the step."""
        # Anchors are drawn by this number: never twice the same ones.
        number = jnp.asarray(self.step * 1000 + self._added, jnp.int32)
        self._gradients, self._metrics = self.accumulate(
            self.state.params, self._frozen, batch, self._gradients, self._metrics, number
        )
        jax.block_until_ready(self._metrics)  # so that a wait before the next one is real
        self._added += 1

    def finish(self, rate: float) -> float | None:
        """Make a step of the added batches, at a multiple of the learning rate; return its loss.

        None if loss or gradients were not finite, so that no step was made.
        """
        state = self._finish(
            self.state, self._gradients, self._metrics, jnp.float32(self._added), jnp.float32(rate)
        )
        metrics = jax.device_get(state.metrics)
        self.state = replace(state, metrics=BlockMetrics.zero(self.slots))
        self._gradients, self._metrics, self._added = self._nothing()
        if not (np.isfinite(metrics.gradient_norm) and np.isfinite(metrics.loss)):
            return None
        return float(metrics.loss) / max(float(metrics.weight), 1e-6)

    def gained(self, params: Any, held_out: Slice, number: int) -> SequenceGain:
        """Return the tokens gained and the steps, if a row is served with these weights."""
        length = len(held_out.rows[number].response)
        batch = held_out.builder([number])([number])
        matches = self._matches_of(params, self._frozen, batch, padded(length))
        walked = walk(np.asarray(matches), length)
        return SequenceGain(sum(walked), len(walked))

    def _nothing(self) -> tuple[Any, BlockMetrics, int]:
        """Return gradients, sums and number of micro-batches of a step that begins."""
        zeros = jax.tree.map(jnp.zeros_like, self.state.params)
        return zeros, BlockMetrics.zero(self.slots), 0


def _make_accumulate(recipe: AnyRecipe, model: DraftModel, dtype: jnp.dtype) -> jax.stages.Wrapped:
    """Return the program that adds a micro-batch to gradients and sums, all float32."""
    gradients_of = make_gradients(recipe, model, complete=as_cached, dtype=dtype)

    @partial(jax.jit, donate_argnums=(3, 4))
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

    return accumulate


def _make_finish(optimizer: optax.GradientTransformation) -> jax.stages.Wrapped:
    """Return the program that makes a step of the sums over `count` micro-batches."""

    @partial(jax.jit, donate_argnums=0)
    def finish(
        state: TrainState, gradients: Any, metrics: BlockMetrics, count: Any, rate: Any
    ) -> TrainState:
        mean = jax.tree.map(lambda total: total / count, gradients)
        after = updated(state, optimizer, mean, metrics, rate)
        sound = jnp.isfinite(after.metrics.gradient_norm) & jnp.isfinite(metrics.loss)
        result: TrainState = jax.tree.map(partial(jnp.where, sound), after, state)
        # The caller reads the sums; the next step begins with zero.
        return replace(result, metrics=after.metrics)

    return finish
