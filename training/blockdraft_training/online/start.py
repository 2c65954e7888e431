"""The start of learning: the version that serves, a given drafter, or the target's layers."""

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
from blockdraft_drafter.compiled.definition import DEFAULT_BLOCK_SIZE, Drafter
from blockdraft_drafter.dflash.model import DFLASH, DFlash
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
from blockdraft_training.errors import TrainingError
from blockdraft_training.methods.dflash import DFlashRecipe, refuse_untrainable
from blockdraft_training.methods.recipe import with_weights
from blockdraft_training.online.settings import LearnSettings
from blockdraft_training.online.traffic import SampleForm
from blockdraft_training.target import HotVocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """A drafter to learn from."""

    drafter: Drafter[DFlash]  # in float32
    source: Path  # its files
    version: int | None  # its number in the store; None if it is not from there
    serves: bool  # whether a candidate must be better than it; otherwise nothing serves
    from_nothing: bool  # whether it, or the drafter it was learned from, is the target's layers

    def still_serves(self, store: VersionStore) -> bool:
        """Return whether no other version was promoted or rolled back to since this was found."""
        current = store.current()
        number = None if current is None else current.number
        return number == (self.version if self.serves else None)

    def as_version(self, store: VersionStore) -> int:
        """Return its number in the store, to which it is added if missing, to be rolled back to."""
        if self.version is not None:
            return self.version
        return store.settle(self.drafter.fingerprint, partial(copy_checkpoint, self.source)).number

    def form(self, target: Checkpoint) -> SampleForm:
        """Return the form that samples must have for it."""
        config, projection = self.drafter.model.config, self.drafter.model.projection

        def projected_in(dtype: Any) -> str:
            weight = np.asarray(projection.weight).astype(dtype)
            scale = np.asarray(projection.scale).astype(dtype)
            digest: str = type(projection)(weight, scale, projection.eps).fingerprint()
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


def find_start(
    store: VersionStore, settings: LearnSettings, recipe: DFlashRecipe, target: Checkpoint
) -> Start:
    """Return the drafter to learn from; if there is none, a version is added to the store.

    Raises TrainingError if the drafter is not a DFlash drafter; ModelError if the named one cannot
    be loaded; VersionError if a version cannot be loaded, which the drafter notices too and then
    serves another; OSError if a version cannot be written.
    """
    current = store.current()
    if current is None:
        try:
            path = find_checkpoint(
                settings.drafter, target, target_spec=settings.target, learns=True
            )
        except NoDrafterError:
            current = store.initialized() or _initialize(store, recipe, target)
            return _of_store(store, current, target, serves=False)
        if path is None:
            raise TrainingError(
                f"drafter {settings.drafter!r} is random: nothing can be learned from"
            )
        return Start(_load(path, target), path, None, serves=True, from_nothing=False)
    return _of_store(store, current, target, serves=True)


def exported(model: DFlash) -> DFlash:
    """Return a drafter in float32 with the values that its file will have."""
    weights = nnx.to_pure_dict(nnx.state(model))
    rounded = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), weights)
    return with_weights(model)(rounded, jnp.float32)


def add_version(
    store: VersionStore,
    recipe: DFlashRecipe,
    model: DFlash,
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


def _initialize(store: VersionStore, recipe: DFlashRecipe, target: Checkpoint) -> Version:
    """Add a drafter made of the target's own layers.

    It can draft the smallest ids, which in vocabularies of merges are the most frequent.
    """
    logger.info("there is no drafter: one is made from the target's own layers")
    settings = recipe.settings
    decoder, _ = load_decoder(resolve_target(settings.target), dtype=jnp.float32)
    ids = HotVocabulary.of(
        np.zeros(target.config.vocab_size, np.int64), settings.hot_vocabulary
    ).draft_ids
    model = recipe.initial_model(decoder, target, ids)
    model.config = replace(model.config, trained=False)
    return add_version(
        store, recipe, model, ids, kind="initialized", reason="the target's own layers"
    )


def _of_store(store: VersionStore, version: Version, target: Checkpoint, *, serves: bool) -> Start:
    path, number = store.path(version.number), version.number
    try:
        drafter = _load(path, target)
    except ModelError as error:
        raise VersionError(f"version {number} cannot be loaded: {error}") from error
    base = store.base(version)
    from_nothing = base is not None and base.kind == "initialized"
    return Start(drafter, path, number, serves, from_nothing)


def _load(path: Path, target: Checkpoint) -> Drafter[DFlash]:
    drafter: Drafter[Any] = load_any(path, target, block_size=DEFAULT_BLOCK_SIZE, dtype=jnp.float32)
    if drafter.definition is not DFLASH:
        raise TrainingError(
            f"{path} is a drafter of {drafter.definition.title}: only DFlash learns while it serves"
        )
    refuse_untrainable(drafter, path)
    return drafter
