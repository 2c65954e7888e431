"""The programs of a step of learning, lowered from the shape of a drafter alone.

They are those of `blockdraft learn run`, in its default settings, for features that come projected.
Weights are divided over the chips as those that draft are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from blockdraft_aot.compiled import Counts, bytes_on_one_device
from blockdraft_aot.pair import Pair
from blockdraft_aot.programs import Program
from blockdraft_drafter.compiled.weight_shapes import abstract_matrices, matrix_shapes
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_models.decoder.sharding import Placement, state_shapes
from blockdraft_training.features.batches import SequenceBatch
from blockdraft_training.features.frozen import Frozen, HotVocabulary
from blockdraft_training.loop.step import TrainState, initial_state
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.online.learning_step import (
    LearningStep,
    learning_optimizer,
    make_learning_step,
    untouched,
)
from blockdraft_training.online.recorded import padded
from blockdraft_training.online.settings import LearnSettings

# XLA counts what attention does: it is no kernel here.
_COUNTED = Counts(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class LearningPrograms:
    """What learning compiles on the devices of a mesh.

    Attributes:
        settings: Of learning.
        config: The drafter's shape.
        step: The computations.
        state: What is learned, only described.
        frozen: What of the target is read, likewise.
        mesh: The devices.
    """

    settings: LearnSettings
    config: DFlashConfig
    step: LearningStep
    state: TrainState
    frozen: Frozen
    mesh: Mesh

    @classmethod
    def on(cls, mesh: Mesh, pair: Pair, dtype: jnp.dtype) -> "LearningPrograms":
        """Return the programs for a mesh.

        Args:
            mesh: The devices.
            pair: The models; the drafter is a DFlash drafter.
            dtype: Of activations; weights, gradients and the optimizer's state are float32.
        """
        config = pair.drafter
        assert isinstance(config, DFlashConfig)
        settings = LearnSettings()
        # Only the steps' settings are used; no folder is.
        recipe = DFlashRecipe(settings.as_run(Path()))
        rate = settings.rate(from_nothing=False)
        optimizer = learning_optimizer(recipe, rate, settings.warmup_steps)
        model = nnx.eval_shape(lambda: DFlash(config, rngs=nnx.Rngs(0)))
        state = _described_state(config, model, optimizer, mesh)
        places = jax.tree.map(lambda leaf: leaf.sharding, state)
        step = make_learning_step(recipe, model, optimizer, dtype=dtype, places=places)
        return cls(settings, config, step, state, _described_target(pair, mesh, dtype), mesh)

    @property
    def lengths(self) -> list[int]:
        """The lengths of sequences, rising."""
        length, found = padded(1), []
        while length <= padded(self.settings.max_length):
            found.append(length)
            length *= 2
        return found

    def programs(self) -> Iterator[Program]:
        """Yield all programs: a micro-batch of each length, and the update."""
        layers = self.config.decoder.num_layers
        rows = self.settings.micro_batch_size
        for length in self.lengths:
            lower = partial(self.lower, length)
            tokens = rows * length
            yield Program("learn", rows, tokens, lower, None, layers, layers, _COUNTED, None)
        yield Program("update", 0, 0, self.lower_update, None, layers, layers, _COUNTED, None)

    def lower(self, length: int) -> jax.stages.Lowered:
        """Return the program that adds a micro-batch of sequences of a length."""
        number = self._input((), jnp.int32)
        state = self.state
        return self.step.accumulate.lower(
            state.params, self.frozen, self.batch(length), state.params, state.metrics, number
        )

    def lower_update(self) -> jax.stages.Lowered:
        """Return the program that makes a step of what was added."""
        number = self._input((), jnp.float32)
        state = self.state
        return self.step.finish.lower(state, state.params, state.metrics, number, number)

    def held(self) -> dict[str, int]:
        """Return what learning keeps on one device beside drafting, in bytes.

        Embedding and head are those that the drafter has there.
        """
        weights = bytes_on_one_device(self.state.params)
        return {
            "learned weights": weights,
            "optimizer": bytes_on_one_device(self.state.optimizer),
            # In float32, like the weights.
            "gradients": weights,
            "batch": bytes_on_one_device(self.batch(self.lengths[-1])),
        }

    def batch(self, length: int) -> SequenceBatch:
        """Return a micro-batch, only described."""
        rows, hidden = self.settings.micro_batch_size, self.config.decoder.hidden_size
        numbers = self._input((rows,), jnp.int32)
        return SequenceBatch(
            self._input((rows, length), jnp.int32),
            numbers,
            numbers,
            self._input((rows, length, hidden), ml_dtypes.bfloat16),
            # Recordings know no teacher but the token that was served.
            self._input((rows, length, 0), jnp.int32),
            self._input((rows, length, 0), jnp.float16),
            projected=True,
        )

    def _input(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=_whole(self.mesh))


def _whole(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def _described_state(
    config: DFlashConfig, model: Any, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Return the state, each weight and what the optimizer keeps of it where it drafts."""
    kept = untouched(projected=True)
    state = jax.eval_shape(lambda: initial_state(DFlash(config, rngs=nnx.Rngs(0)), optimizer, kept))
    weights = state_shapes(nnx.state(model), config.decoder, Placement(mesh))
    params = {name: part for name, part in nnx.to_pure_dict(weights).items() if name not in kept}

    def whole(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_whole(mesh))

    return TrainState(
        whole(state.step),
        params,
        optax.tree_map_params(
            optimizer,
            lambda _, weight: weight,
            state.optimizer,
            params,
            transform_non_params=whole,
        ),
        jax.tree.map(whole, state.metrics),
    )


def _described_target(pair: Pair, mesh: Mesh, dtype: jnp.dtype) -> Frozen:
    """Return embedding and head, divided as they are for drafting."""
    assert pair.drafter is not None
    decoder, draft_vocab = pair.drafter.decoder, pair.drafter.draft_vocab_size
    tied = pair.target.tie_word_embeddings
    matrices = matrix_shapes(
        abstract_matrices(decoder, dtype=dtype, tied=tied, draft_vocab_size=draft_vocab),
        Placement(mesh),
    )
    head = matrices.embedding if matrices.head is None else matrices.head

    def ids(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count,), jnp.int32, sharding=_whole(mesh))

    hot = HotVocabulary(ids(head.shape[0]), ids(decoder.vocab_size))
    return Frozen(matrices.embedding, head, hot)
