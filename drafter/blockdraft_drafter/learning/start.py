"""The start of learning with a drafter: the version that serves, and its learner."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import DTypeLike
from prometheus_client import CollectorRegistry

from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.compiled.definition import DEFAULT_BLOCK_SIZE, Drafter
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.learning.learner import ServingLearner
from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.learning.recorder import Recorder
from blockdraft_drafter.learning.samples import RAW, SampleStore
from blockdraft_drafter.learning.versions import (
    Version,
    VersionError,
    VersionStore,
    copy_checkpoint,
)
from blockdraft_drafter.sources import (
    NoDrafterError,
    find_checkpoint,
    load_any,
    obtain_drafter,
)
from blockdraft_models.cache import default_cache_dir
from blockdraft_models.errors import ModelError
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_runtime.settings.drafter import DrafterSettings

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LearningStart:
    """The start of learning: the version to serve with, and its drafter."""

    store: VersionStore
    version: Version
    drafter: Drafter[Any]

    @property
    def from_nothing(self) -> bool:
        """Whether it, or the drafter it was learned from, was made of the target's layers."""
        base = self.store.base(self.version)
        return base is not None and base.kind == "initialized"


def begin_learning(
    settings: DrafterSettings, target: Checkpoint, dtype: DTypeLike
) -> LearningStart:
    """Return the version to serve with; ModelError if it cannot be loaded, or OSError."""
    directory = settings.learning.directory
    store = VersionStore(directory or default_cache_dir() / "learn" / target.fingerprint)
    try:
        source = find_checkpoint(settings.drafter, target, target_spec=settings.target)
    except NoDrafterError:
        return _wait_for_one(store, target, dtype)
    named = obtain_drafter(
        str(source or settings.drafter),
        target,
        block_size=settings.block_size,
        num_layers=settings.draft_layers,
        dtype=dtype,
    )
    return load_current(store, named, source, target, dtype)


def load_current(
    store: VersionStore,
    named: Drafter[Any],
    source: Path | None,
    target: Checkpoint,
    dtype: DTypeLike,
) -> LearningStart:
    """Return the version to begin with; a version that cannot be loaded is rejected.

    It is the newest promoted version that a process has loaded before, or else the drafter that the
    settings name. Others are loaded later, beside serving: nobody shall wait for that. `source` are
    the files of the named drafter; None if it has none.
    """

    def write(folder: Path) -> None:
        if source is None:
            save_drafter(named.model, folder, named.draft_ids)
        else:
            copy_checkpoint(source, folder)

    settled = store.settle(named.fingerprint, write)
    for version in store.promoted():
        if version.kind != "learned":
            break
        if not version.loads:
            logger.info("version %d is loaded later", version.number)
            continue
        try:
            drafter = load_version(store, version.number, named, target, dtype)
            return LearningStart(store, version, drafter)
        except (ModelError, VersionError) as error:
            _reject(store, version, error)
    return LearningStart(store, store.base(settled) or settled, named)


def load_version(
    store: VersionStore, number: int, like: Drafter[Any], target: Checkpoint, dtype: DTypeLike
) -> Drafter[Any]:
    """Load a version of the method of `like`; `ModelError` or `VersionError` if that fails."""
    block_size = like.model.config.block_size
    drafter = load_any(store.path(number), target, block_size=block_size, dtype=dtype)
    if drafter.definition is not like.definition:
        raise VersionError(f"it is {drafter.definition.title}, not {like.definition.title}")
    return drafter


def make_learner(
    start: LearningStart,
    settings: DrafterSettings,
    method: CompiledMethod,
    target: Checkpoint,
    dtype: DTypeLike,
    metrics: LearningMetrics | None,
) -> ServingLearner:
    """Return the learner beside a `method` that serves; for the arguments see `begin_learning`."""
    spec, store = method.spec, start.store
    origin = {
        "target_fingerprint": target.fingerprint,
        "feature_form": RAW if spec.projection is None else spec.projection.fingerprint(),
        "layer_ids": spec.target_layer_ids,
    }
    recorder = Recorder(
        SampleStore(store.directory / "samples", settings.learning.limit_bytes),
        origin,
        settings.learning.share,
        metrics or LearningMetrics(CollectorRegistry()),
    )

    def load(number: int) -> Drafter[Any]:
        return load_version(store, number, start.drafter, target, dtype)

    return ServingLearner(method, store, start.version, recorder, settings.target, load)


def _wait_for_one(store: VersionStore, target: Checkpoint, dtype: DTypeLike) -> LearningStart:
    """Return the promoted version, or else the one that the trainer makes of the target's layers.

    The latter is not promoted before it pays, but it determines which features to record.
    """
    logged = False
    while True:
        loads = (version for version in store.promoted() if version.loads)
        # Other versions are loaded later, if there is one to begin with.
        version = next(loads, None) or store.initialized() or store.current()
        if version is not None:
            path = store.path(version.number)
            try:
                drafter = load_any(path, target, block_size=DEFAULT_BLOCK_SIZE, dtype=dtype)
                return LearningStart(store, version, drafter)
            except ModelError as error:
                _reject(store, version, error)
                continue
        if not logged:
            logger.info(
                "no drafter is known for this target: waiting for the one that "
                "`blockdraft learn run` makes of the target's own layers"
            )
        logged = True
        time.sleep(_POLL_SECONDS)


def _reject(store: VersionStore, version: Version, error: Exception) -> None:
    logger.warning("version %d is rejected: %s", version.number, error)
    store.reject(version.number, str(error))
