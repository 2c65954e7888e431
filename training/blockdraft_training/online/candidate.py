"""The weights that are being learned, and their steps, each made of micro-batches."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_training.features.batches import SequenceBatch
from blockdraft_training.features.frozen import Frozen, as_cached
from blockdraft_training.loop.held_out import make_matches
from blockdraft_training.loop.step import initial_state
from blockdraft_training.methods.objective import BlockMetrics
from blockdraft_training.methods.recipe import AnyRecipe, with_weights
from blockdraft_training.online.learning_step import (
    learning_optimizer,
    make_learning_step,
    untouched,
)


@dataclass(frozen=True, slots=True)
class StepReading:
    """One step.

    Attributes:
        made: Whether it was; not if loss or gradients were no numbers.
        loss: Mean by position weight.
        expected_tau: Expected τ at its random anchors.
    """

    made: bool
    loss: float
    expected_tau: float


class Candidate:
    """The state of the weights that are being learned.

    Attributes:
        state: Weights, optimizer and steps made.
        frozen: The target's weights.
        projected: Whether features come projected.
        slots: Tokens drafted after an anchor.
        matches_of: Replays rows; see `make_matches`.
        start_params: The weights it began with, all of them.
    """

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
        """Begin with a model's weights.

        Args:
            recipe: The method and what its steps are told.
            model: Where to begin, float32.
            frozen: The target's weights.
            projected: Whether features come projected.
            learning_rate: Once warmed up.
            warmup_steps: Steps with a rising rate.
            dtype: Of activations.
        """
        self._model, self.frozen, self.projected = model, frozen, projected
        self.slots = model.config.block_size - 1
        optimizer = learning_optimizer(recipe, learning_rate, warmup_steps)
        self.state = initial_state(model, optimizer, untouched(projected=projected))
        self.start_params = nnx.to_pure_dict(nnx.state(model))
        self.matches_of = make_matches(recipe, model, complete=as_cached, dtype=dtype)
        self._step = make_learning_step(recipe, model, optimizer, dtype=dtype)
        self._gradients: Any = None
        self._metrics = BlockMetrics.zero(self.slots)
        self._added = 0
        self._begin_step()

    @property
    def step(self) -> int:
        """Steps made."""
        return int(self.state.step)

    @property
    def params(self) -> Any:
        """All weights as they are now, those that are not learned included."""
        return {**self.start_params, **self.state.params}

    def model(self) -> Any:
        """Return the drafter with the weights as they are now, float32."""
        return with_weights(self._model)(jax.device_get(self.params), jnp.float32)

    def add(self, batch: SequenceBatch) -> None:
        """Add a micro-batch to the step."""
        # Anchors are drawn by this number: never twice the same ones.
        number = jnp.asarray(self.step * 1000 + self._added, jnp.int32)
        self._gradients, self._metrics = self._step.accumulate(
            self.state.params, self.frozen, batch, self._gradients, self._metrics, number
        )
        jax.block_until_ready(self._metrics)  # so that a wait before the next one is real
        self._added += 1

    def finish(self, rate: float) -> StepReading:
        """Make the step of what was added, at a multiple of the learning rate."""
        state = self._step.finish(
            self.state, self._gradients, self._metrics, jnp.float32(self._added), jnp.float32(rate)
        )
        metrics = jax.device_get(state.metrics)
        self.state = replace(state, metrics=BlockMetrics.zero(self.slots))
        self._begin_step()
        made = bool(jnp.isfinite(metrics.gradient_norm) & jnp.isfinite(metrics.loss))
        return StepReading(
            made,
            float(metrics.loss) / max(float(metrics.weight), 1e-6),
            float(metrics.gained) / max(float(metrics.blocks), 1),
        )

    def _begin_step(self) -> None:
        self._gradients = jax.tree.map(jnp.zeros_like, self.state.params)
        self._metrics = BlockMetrics.zero(self.slots)
        self._added = 0
