"""The interface of a draft method to a training run, and helpers for draft models."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_drafter.checkpoint import build, load_drafter, published_arrays, save_drafter
from blockdraft_drafter.compiled.definition import (
    DraftConfig,
    Drafter,
    DraftModel,
    MethodDefinition,
)
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_models.decoder.linear import Linear
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.products import project
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_training.batches import SequenceBatch
from blockdraft_training.settings import TrainSettings

Config = TypeVar("Config", bound=DraftConfig)
Model = TypeVar("Model", bound=DraftModel)

# Share of random weights kept beside copied ones: what is not copied starts with some say.
COPY_NOISE = 0.1


@dataclass(frozen=True, slots=True)
class Recipe(ABC, Generic[Config, Model]):
    """A draft method, as training sees it."""

    settings: TrainSettings  # settings of the run
    method: ClassVar[MethodDefinition[Any]]  # the method, as the drafter defines it
    idea: ClassVar[str]  # how it drafts, for the model card
    # The parts of its model that project features.
    projection_parts: ClassVar[frozenset[str]]

    def initial_model(
        self, decoder: Decoder, target: Checkpoint, draft_ids: np.ndarray | None
    ) -> Model:
        """Return the model before the first step, in float32.

        `draft_ids` are the ids that it can draft, None for all.
        """
        settings = self.settings
        overrides = {
            **self.given_fields(),
            "draft_vocab_size": None if draft_ids is None else len(draft_ids),
            "target_fingerprint": target.fingerprint,
            "trained": True,
        }
        config = replace(self.default_config(target), **overrides)
        if settings.init == "target":
            return self.from_target(config, decoder)
        if settings.init == "random":
            model: Model = self.method.module(
                config, dtype=jnp.float32, rngs=nnx.Rngs(settings.seed)
            )
            return model
        earlier = load_drafter(
            self.method,
            Path(settings.init),
            target,
            dtype=jnp.float32,
            block_size=settings.block_size,
        )
        return self.from_drafter(replace(earlier.model.config, **overrides), earlier, draft_ids)

    @abstractmethod
    def default_config(self, target: Checkpoint) -> Config:
        """Return the configuration of a drafter that starts without an earlier one."""

    def given_fields(self) -> dict[str, Any]:
        """Return the fields of a configuration that the settings alone decide."""
        return {"block_size": self.settings.block_size}

    @abstractmethod
    def from_target(self, config: Config, decoder: Decoder) -> Model:
        """Return a model that starts from the target's own layers."""

    @abstractmethod
    def from_drafter(
        self, config: Config, earlier: Drafter[Model], draft_ids: np.ndarray | None
    ) -> Model:
        """Return a model that starts from an earlier drafter, as far as it fits."""

    @abstractmethod
    def check_trainable(self, drafter: Drafter[Model], name: object) -> None:
        """Raise TrainingError if a drafter has parts that training knows nothing of."""

    @abstractmethod
    def draft(
        self,
        model: Model,
        embedding: Float[Array, "vocab hidden"],
        batch: SequenceBatch,
        anchors: Int[Array, "batch blocks"],
    ) -> Float[Array, "batch blocks slots hidden"]:
        """Return the input of the head for every token drafted after each anchor."""

    @abstractmethod
    def decay(self, block_size: int) -> float:
        """Return the published γ of the position weights."""

    def save(self, model: Model, directory: Path, draft_ids: np.ndarray | None) -> None:
        """Write the drafter in bfloat16, in the published format."""
        arrays = published_arrays(model)
        rounded = {name: array.astype(jnp.bfloat16) for name, array in arrays.items()}
        model = build(self.method, model.config, rounded, dtype=jnp.bfloat16)
        save_drafter(model, directory, draft_ids)


AnyRecipe = Recipe[Any, Any]


def pass_last_feature(fc: Linear, hidden: int) -> None:
    """Let the projection of features pass the last captured layer through."""
    passing = fc.weight[...] * COPY_NOISE
    fc.weight[...] = passing.at[:, -hidden:].add(jnp.eye(hidden))


def with_weights(model: Model) -> Callable[[Any, DTypeLike], Model]:
    """Return a function that builds the model from weights, a pure dict, in a given type."""
    graph, abstract = nnx.split(model)

    def rebuilt(params: Any, dtype: DTypeLike) -> Model:
        state = jax.tree.map(lambda leaf: leaf, abstract)
        nnx.replace_by_pure_dict(state, jax.tree.map(lambda weight: weight.astype(dtype), params))
        return nnx.merge(graph, state)

    return rebuilt


def tokens_before(
    token_ids: Int[Array, "batch length"], anchors: Int[Array, "batch blocks"], slots: int
) -> Int[Array, "batch blocks slots"]:
    """Return the true token before each drafted one, the anchor before the first.

    A serving draft that was right so far has the same, and after a miss nothing counts.
    """
    positions = anchors[..., None] + jnp.arange(slots)[None, None, :]
    flat = positions.reshape(len(anchors), -1)
    before = jnp.take_along_axis(token_ids, flat, axis=1, mode="clip")
    return before.reshape(positions.shape)


def draft_logits(
    model: DraftModel,
    head: Float[Array, "hot hidden"],
    hidden: Float[Array, "rows hidden"],
    previous: Int[Array, " rows"],
) -> Float[Array, "rows hot"]:
    """Return the logits over the hot vocabulary, float32, in training as in its measurement.

    `head` has the hot rows of the target's head, `previous` the token before each row's.
    """
    logits = project(hidden, head.astype(hidden.dtype), dtype=jnp.float32)
    if isinstance(model, DFlash) and model.markov_head is not None:
        logits += model.markov_head(previous)
    return logits
