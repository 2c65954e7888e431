"""How learning begins when a drafter starts: which version serves, and what learns beside it."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import DTypeLike
from prometheus_client import CollectorRegistry

from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.config import DEFAULT_BLOCK_SIZE
from blockdraft_drafter.files.sources import (
    NoDrafterError,
    find_checkpoint,
    load_any,
    obtain_drafter,
)
from blockdraft_drafter.learning.base import settle_base
from blockdraft_drafter.learning.learner import Learner
from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.learning.recorder import Origin, Recorder
from blockdraft_drafter.learning.recordings import RAW, Recordings
from blockdraft_drafter.learning.trials import has_served
from blockdraft_drafter.learning.versions import Version, VersionError, VersionStore
from blockdraft_models.cache import default_cache_dir
from blockdraft_models.errors import ModelError
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_runtime.settings.drafter import DrafterSettings, LearningSettings

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


def load_current(
    store: VersionStore,
    drafter: Drafter[Any],
    source: Path | None,
    target: Checkpoint,
    dtype: DTypeLike,
) -> tuple[Version, Drafter[Any]]:
    """Return the version to begin with, and its weights; what cannot be loaded is rejected.

    It is the newest one promoted that has served before, at the least what the settings name. One
    that has not is taken over later, by a process that serves already: a start that it kills or
    hangs would be one that everybody waits for.

    Args:
        store: The versions.
        drafter: What the settings name.
        source: Its files; None if it has none.
        target: What it drafts for.
        dtype: Of weights and activations.

    Raises:
        OSError: If the store cannot be written.
    """
    settled = settle_base(store, drafter, source)
    for version in store.promoted():
        if version.kind != "learned":
            break
        if not has_served(store.path(version.number)):
            logger.info("version %d has not served yet: it is tried later", version.number)
            continue
        try:
            return version, load_version(store, version.number, drafter, target, dtype)
        except (ModelError, VersionError) as error:
            logger.warning("version %d is rejected: %s", version.number, error)
            store.reject(version.number, str(error))
    return store.base() or settled, drafter


def load_version(
    store: VersionStore, number: int, like: Drafter[Any], target: Checkpoint, dtype: DTypeLike
) -> Drafter[Any]:
    """Load a version.

    Args:
        store: The versions.
        number: Of the version.
        like: What its form must be.
        target: What it drafts for.
        dtype: Of weights and activations.

    Raises:
        ModelError: If it is damaged or of another form.
    """
    block_size = like.model.config.block_size
    drafter = load_any(store.path(number), target, block_size=block_size, dtype=dtype)
    if drafter.definition is not like.definition:
        raise VersionError(f"it is {drafter.definition.title}, not {like.definition.title}")
    return drafter


@dataclass(frozen=True, slots=True)
class _Learning:
    """Where learning begins.

    Attributes:
        directory: What is learned from, and the versions.
        store: The versions.
        version: The one to serve with.
        drafter: Its weights.
    """

    directory: Path
    store: VersionStore
    version: Version
    drafter: Drafter[Any]


def begin_learning(settings: DrafterSettings, target: Checkpoint, dtype: DTypeLike) -> _Learning:
    """Return the version of a drafter to serve with.

    Args:
        settings: Name the drafter, and the folder of its versions.
        target: What it drafts for.
        dtype: Of weights and activations.

    Raises:
        ModelError: If the drafter that is named cannot be loaded.
        OSError: If the folder cannot be written.
    """
    directory = settings.learning.directory
    if directory is None:
        directory = default_cache_dir() / "learn" / target.fingerprint
    store = VersionStore(directory)
    try:
        source = find_checkpoint(settings.drafter, target, target_spec=settings.target, learns=True)
    except NoDrafterError:
        version, drafter = _wait_for_one(store, target, dtype)
        return _Learning(directory, store, version, drafter)
    drafter = obtain_drafter(
        str(source or settings.drafter),
        target,
        block_size=settings.block_size,
        num_layers=settings.draft_layers,
        dtype=dtype,
    )
    version, drafter = load_current(store, drafter, source, target, dtype)
    return _Learning(directory, store, version, drafter)


def _wait_for_one(
    store: VersionStore, target: Checkpoint, dtype: DTypeLike
) -> tuple[Version, Drafter[Any]]:
    """Return the promoted version, or else what the trainer makes of the target's own layers.

    That one is not promoted before it pays, but it says what features to record.
    """
    told = False
    while True:
        made = [each for each in store.list() if each.good and each.kind == "initialized"]
        served = (each for each in store.promoted() if has_served(store.path(each.number)))
        # One that has not served is tried later, if there is anything else to begin with.
        found = next(served, None) or (made[-1] if made else store.current())
        if found is not None:
            try:
                drafter = load_any(
                    store.path(found.number), target, block_size=DEFAULT_BLOCK_SIZE, dtype=dtype
                )
                return found, drafter
            except ModelError as error:
                logger.warning("version %d is rejected: %s", found.number, error)
                store.reject(found.number, str(error))
                continue
        if not told:
            logger.info(
                "no drafter is known for this target: waiting for the one that "
                "`blockdraft learn run` makes of the target's own layers"
            )
        told = True
        time.sleep(_LOOK_SECONDS)


def make_learner(
    learning: _Learning,
    settings: LearningSettings,
    method: CompiledMethod,
    target: Checkpoint,
    dtype: DTypeLike,
    counts: LearningMetrics | None,
) -> Learner:
    """Return what learns while `method` serves; for the arguments see `begin_learning`."""
    counts = counts or LearningMetrics(CollectorRegistry())
    spec = method.spec
    form = RAW if spec.projection is None else spec.projection.fingerprint()
    recorder = Recorder(
        Recordings(learning.directory / "recordings", settings.limit_bytes),
        Origin(target.fingerprint, form, spec.target_layer_ids),
        settings.share,
        counts,
    )

    def load(number: int) -> Drafter[Any]:
        return load_version(learning.store, number, learning.drafter, target, dtype)

    return Learner(
        method, learning.store, learning.version, recorder, load, counts, learning.directory
    )
