"""The parent of a candidate: the version that it begins with, and must surpass."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx

from blockdraft_drafter.checkpoint import fingerprint, published_arrays
from blockdraft_drafter.compiled.definition import DEFAULT_BLOCK_SIZE, Drafter, DraftModel
from blockdraft_drafter.learning.versions import (
    Version,
    VersionError,
    VersionStore,
    copy_checkpoint,
)
from blockdraft_drafter.sources import NoDrafterError, find_checkpoint, load_any
from blockdraft_models.errors import ModelError
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.methods.eagle3 import Eagle3Recipe
from blockdraft_training.methods.recipe import AnyRecipe, with_weights
from blockdraft_training.online.settings import LearnSettings
from blockdraft_training.online.traffic import SampleForm
from blockdraft_training.target import HotVocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parent:
    """A version to learn from; it serves, or nothing does."""

    version: Version
    drafter: Drafter[Any]  # in float32
    recipe: AnyRecipe  # of its method
    from_nothing: bool  # whether it, or the drafter it was learned from, is the target's layers

    @property
    def serves(self) -> bool:
        """Whether a candidate must be better than it; otherwise nothing serves."""
        return self.version.state == "promoted"

    def still_serves(self, store: VersionStore) -> bool:
        """Return whether no other version was promoted or rolled back to since this was read."""
        current = store.current()
        number = None if current is None else current.number
        return number == (self.version.number if self.serves else None)

    def form(self, target: Checkpoint) -> SampleForm:
        """Return the form that samples must have for it."""
        config, projection = self.drafter.model.config, self.drafter.model.projection

        def projected_in(dtype: Any) -> str:
            served = jax.tree.map(lambda array: np.asarray(array).astype(dtype), projection)
            digest: str = served.fingerprint()
            return digest

        return SampleForm(
            target.fingerprint,
            config.target_layer_ids,
            config.feature_width,
            config.decoder.hidden_size,
            # A drafter projects in the type that it is served in.
            frozenset({projected_in(np.float32), projected_in(ml_dtypes.bfloat16)}),
            target.config.vocab_size,
        )


def find_parent(store: VersionStore, settings: LearnSettings, target: Checkpoint) -> Parent:
    """Return the version to learn from; if there is none, one is added to the store.

    Raises TrainingError if the drafter cannot be trained; ModelError if the named one cannot be
    loaded; VersionError if a version cannot be loaded, which the drafter notices too and then
    serves another; OSError if a version cannot be written.
    """
    version = store.current() or _first_version(store, settings, target)
    path = store.path(version.number)
    try:
        drafter = load_any(path, target, block_size=DEFAULT_BLOCK_SIZE, dtype=jnp.float32)
    except ModelError as error:
        raise VersionError(f"version {version.number} cannot be loaded: {error}") from error
    recipe: AnyRecipe = next(
        recipe(settings.as_run(store.directory))
        for recipe in (DFlashRecipe, Eagle3Recipe)
        if recipe.method is drafter.definition
    )
    recipe.check_trainable(drafter, path)
    base = store.base(version)
    return Parent(version, drafter, recipe, base is not None and base.kind == "initialized")


def exported(model: DraftModel) -> DraftModel:
    """Return a drafter in float32 with the values that its file will have."""
    weights = nnx.to_pure_dict(nnx.state(model))
    rounded = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), weights)
    return with_weights(model)(rounded, jnp.float32)


def add_version(
    store: VersionStore,
    recipe: AnyRecipe,
    model: DraftModel,
    draft_ids: np.ndarray | None,
    **about: Any,
) -> Version:
    """Write a drafter as a new version; see `VersionStore.add`."""
    arrays = {
        name: np.asarray(array, np.float32)
        for name, array in published_arrays(exported(model)).items()
    }
    identity = fingerprint(model.config, arrays, draft_ids)

    def write(directory: Path) -> None:
        recipe.save(model, directory, draft_ids)

    return store.add(write, fingerprint=identity, **about)


def _first_version(store: VersionStore, settings: LearnSettings, target: Checkpoint) -> Version:
    """Return a version where none was promoted: the named drafter, or the target's layers."""
    try:
        path = find_checkpoint(settings.drafter, target, target_spec=settings.target)
    except NoDrafterError:
        return store.initialized() or _initialize(store, settings, target)
    if path is None:
        raise VersionError(f"drafter {settings.drafter!r} is random: it is awaited in the store")
    named = load_any(path, target, block_size=DEFAULT_BLOCK_SIZE, dtype=jnp.float32)
    return store.settle(named.fingerprint, partial(copy_checkpoint, path))


def _initialize(store: VersionStore, settings: LearnSettings, target: Checkpoint) -> Version:
    """Add a drafter made of the target's own layers.

    It can draft the smallest ids, which in vocabularies of merges are the most frequent.
    """
    logger.info("there is no drafter: one is made from the target's own layers")
    recipe = DFlashRecipe(settings.as_run(store.directory))
    decoder, _ = load_decoder(resolve_target(settings.target), dtype=jnp.float32)
    ids = HotVocabulary.of(
        np.zeros(target.config.vocab_size, np.int64), recipe.settings.hot_vocabulary
    ).draft_ids
    model = recipe.initial_model(decoder, target, ids)
    model.config = replace(model.config, trained=False)
    return add_version(
        store, recipe, model, ids, kind="initialized", reason="the target's own layers"
    )
