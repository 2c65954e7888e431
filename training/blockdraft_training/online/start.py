"""Where learning begins: the version that serves, a drafter that is given, the target's layers."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx

from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.dflash.definition import DFLASH
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.files.checkpoint import fingerprint, published_arrays
from blockdraft_drafter.files.sources import NoDrafterError, find_checkpoint, load_any
from blockdraft_drafter.learning.versions import (
    Version,
    VersionError,
    VersionStore,
    copy_checkpoint,
)
from blockdraft_models.errors import ModelError
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.errors import TrainingError
from blockdraft_training.features.frozen import HotVocabulary
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.online.recorded import Form
from blockdraft_training.online.settings import LearnSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """A drafter to learn from.

    Attributes:
        model: In float32.
        draft_ids: Target ids it can propose; None for all.
        version: Its number in the store; None if it is not from there.
        serves: Whether it is what a candidate must be better than; otherwise nothing serves.
        from_nothing: Whether it was made of the target's layers, or learned from such a one.
        drafter: As it was loaded.
        source: Its files.
    """

    model: DFlash
    draft_ids: np.ndarray | None
    version: int | None
    serves: bool
    from_nothing: bool
    drafter: Drafter[Any]
    source: Path

    @property
    def params(self) -> Mapping[str, Any]:
        """All weights."""
        params: Mapping[str, Any] = nnx.to_pure_dict(nnx.state(self.model))
        return params

    def still_serves(self, store: VersionStore) -> bool:
        """Return whether nothing else was promoted, or gone back to, since this was found."""
        current = store.current()
        number = None if current is None else current.number
        return number == (self.version if self.serves else None)

    def as_version(self, store: VersionStore) -> int:
        """Return its number in the store, where it is added if it is not from there.

        So there is something to go back to, and a drafter that starts finds the same.

        Raises:
            OSError: If it cannot be written.
        """
        if self.version is not None:
            return self.version
        return store.settle_base(
            self.drafter.fingerprint,
            partial(copy_checkpoint, self.source),
            trained=self.drafter.model.config.trained,
        ).number

    def form(self, target: Checkpoint) -> Form:
        """Return what recordings must be for it."""
        config = self.model.config
        projection = self.model.projection
        return Form(
            target.fingerprint,
            config.target_layer_ids,
            config.feature_width,
            config.decoder.hidden_size,
            # A drafter projects in the type that it is served in.
            frozenset(
                _in_type(projection, dtype).fingerprint()
                for dtype in (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))
            ),
            target.config.vocab_size,
        )


def find_start(
    store: VersionStore, settings: LearnSettings, recipe: DFlashRecipe, target: Checkpoint
) -> Start:
    """Return what to learn from.

    Args:
        store: Of the versions; one is added if there is no drafter at all.
        settings: Name the drafter to begin with.
        recipe: How one is made from the target's layers.
        target: What is drafted for.

    Raises:
        TrainingError: If the drafter is not a DFlash drafter.
        ModelError: If the one that is named cannot be loaded.
        VersionError: If a version cannot; another one will serve as soon as the drafter sees it.
        OSError: If a version cannot be written.
    """
    current = store.current()
    if current is not None:
        return _of_store(store, current, target, settings, serves=True)
    try:
        path = find_checkpoint(settings.drafter, target, target_spec=settings.target, learns=True)
    except NoDrafterError:
        made = [each for each in store.list() if each.kind == "initialized" and each.good]
        version = made[-1] if made else _initialize(store, recipe, target)
        return _of_store(store, version, target, settings, serves=False)
    if path is None:
        raise TrainingError(f"drafter {settings.drafter!r} is random: nothing can be learned from")
    return _loaded(path, target, settings, None, serves=True, from_nothing=False)


def exported(model: DFlash) -> DFlash:
    """Return a drafter in float32 with the values that its file will have."""
    graph, state = nnx.split(model)
    rounded = nnx.to_pure_dict(state)
    nnx.replace_by_pure_dict(state, _rounded(rounded))
    return nnx.merge(graph, state)


def add_version(
    store: VersionStore,
    recipe: DFlashRecipe,
    model: DFlash,
    draft_ids: np.ndarray | None,
    **about: Any,
) -> Version:
    """Write a drafter as a new version; see `VersionStore.add`.

    Raises:
        OSError: If it cannot be written.
    """
    arrays = {
        name: np.asarray(array, np.float32)
        for name, array in published_arrays(DFLASH, exported(model)).items()
    }
    identity = fingerprint(DFLASH, model.config, arrays, draft_ids)

    def write(directory: Path) -> None:
        recipe.save(model, directory, draft_ids)

    return store.add(write, fingerprint=identity, **about)


def _initialize(store: VersionStore, recipe: DFlashRecipe, target: Checkpoint) -> Version:
    """Add a drafter made of the target's own layers.

    What it can propose are the smallest ids, which in vocabularies of merges are the most frequent.
    """
    logger.info("there is no drafter: one is made from the target's own layers")
    settings = recipe.settings
    decoder, _ = load_decoder(resolve_target(settings.target), dtype=jnp.float32)
    vocab = target.config.vocab_size
    hot = HotVocabulary.of(np.zeros(vocab, np.int64), settings.hot_vocabulary or vocab)
    draft_ids = np.asarray(hot.ids) if len(hot.ids) < vocab else None
    model = recipe.initial_model(decoder, target, draft_ids)
    model.config = replace(model.config, trained=False)
    return add_version(
        store, recipe, model, draft_ids, kind="initialized", reason="the target's own layers"
    )


def _of_store(
    store: VersionStore,
    version: Version,
    target: Checkpoint,
    settings: LearnSettings,
    *,
    serves: bool,
) -> Start:
    path, number = store.path(version.number), version.number
    try:
        return _loaded(
            path, target, settings, number, serves=serves, from_nothing=store.from_nothing
        )
    except ModelError as error:
        raise VersionError(f"version {number} cannot be loaded: {error}") from error


def _loaded(
    path: Path,
    target: Checkpoint,
    settings: LearnSettings,
    version: int | None,
    *,
    serves: bool,
    from_nothing: bool,
) -> Start:
    drafter: Drafter[Any] = load_any(
        path, target, block_size=settings.block_size, dtype=jnp.float32
    )
    if drafter.definition is not DFLASH:
        raise TrainingError(
            f"{path} is a drafter of {drafter.definition.title}: only DFlash learns while it serves"
        )
    return Start(drafter.model, drafter.draft_ids, version, serves, from_nothing, drafter, path)


def _in_type(projection: Any, dtype: np.dtype[Any]) -> Any:
    weight = np.asarray(projection.weight).astype(dtype)
    return type(projection)(weight, np.asarray(projection.scale).astype(dtype), projection.eps)


def _rounded(weights: Any) -> Any:
    return jax.tree.map(lambda weight: weight.astype(jnp.bfloat16).astype(jnp.float32), weights)
