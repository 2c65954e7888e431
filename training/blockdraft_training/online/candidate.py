"""The weights that are being learned: their steps and their τ.

The computations are those of `blockdraft train`, with these differences: a step whose gradients are
not finite is discarded, and with projected features the projection is not trained.
"""

from dataclasses import replace
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
from blockdraft_training.loop.step import initial_state, make_optimizer, make_step
from blockdraft_training.methods.objective import BlockMetrics
from blockdraft_training.methods.recipe import AnyRecipe, with_weights
from blockdraft_training.online.traffic import Slice, padded
from blockdraft_training.target import Frozen, as_cached

_ALWAYS = 2**31 - 1


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
        optimizer = optax.apply_if_finite(make_optimizer(recipe.settings, schedule), _ALWAYS)
        # Projected features went through these already.
        fixed_parts = recipe.projection_parts if projected else frozenset[str]()
        self.state = initial_state(model, optimizer, fixed_parts)
        self.start_params = nnx.to_pure_dict(nnx.state(model))
        self._matches_of = make_matches(recipe, model, complete=as_cached, dtype=dtype)
        self.make_step = make_step(recipe, model, optimizer, complete=as_cached, dtype=dtype)

    @property
    def step(self) -> int:
        """Steps made, those that were discarded included."""
        return int(self.state.step)

    def model(self) -> Any:
        """Return the drafter with the weights as they are now, float32."""
        params = {**self.start_params, **self.state.params}
        return with_weights(self._model)(jax.device_get(params), jnp.float32)

    def learn(self, batch: SequenceBatch) -> float | None:
        """Make a step; return its loss, or None if loss or gradients were not finite."""
        state = self.make_step(self.state, self._frozen, batch)
        metrics = jax.device_get(state.metrics)
        self.state = replace(state, metrics=BlockMetrics.zero(self.slots))
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
