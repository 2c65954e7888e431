"""The start of a drafter that learns: the version it begins with, and how others are loaded."""

import contextlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import DTypeLike
from prometheus_client import CollectorRegistry

from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.learning.recorder import Recorder
from blockdraft_drafter.learning.rehearsal import rehearse
from blockdraft_drafter.learning.samples import RAW, SampleStore
from blockdraft_drafter.learning.serving import ServingVersion
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


@dataclass(slots=True)
class LearningStart:
    """The store of versions of a drafter for a target, and the version it begins with."""

    settings: DrafterSettings
    target: Checkpoint
    dtype: DTypeLike
    store: VersionStore
    version: Version
    drafter: Drafter[Any]  # of that version

    @property
    def from_nothing(self) -> bool:
        """Whether it, or the drafter it was learned from, was made of the target's layers."""
        base = self.store.base(self.version)
        return base is not None and base.kind == "initialized"

    def serve(self, method: CompiledMethod, metrics: LearningMetrics | None) -> ServingVersion:
        """Return the version with which a method, which has loaded it, drafts."""
        spec, learning = method.spec, self.settings.learning
        origin = {
            "target_fingerprint": self.target.fingerprint,
            "feature_form": RAW if spec.projection is None else spec.projection.fingerprint(),
            "layer_ids": spec.target_layer_ids,
        }
        samples = SampleStore(self.store.directory / "samples", learning.limit_bytes)
        metrics = metrics or LearningMetrics(CollectorRegistry())
        recorder = Recorder(samples, origin, learning.share, metrics)
        return ServingVersion(method, self.store, self.version, recorder, self.load)

    def load(self, number: int) -> Drafter[Any]:
        """Load another version; `ModelError` or `VersionError` if that fails.

        The first time it is loaded in a process of its own before, which may crash or hang.
        """
        path = self.store.path(number)
        if not self.store.read(number).loads:
            rehearse(path, self.settings.target)
            with contextlib.suppress(OSError):  # a full disk: it is loaded there once more
                self.store.mark_loaded(number)
        block_size = self.drafter.model.config.block_size
        drafter = load_any(path, self.target, block_size=block_size, dtype=self.dtype)
        if drafter.definition is not self.drafter.definition:
            ours = self.drafter.definition.title
            raise VersionError(f"it is {drafter.definition.title}, not {ours}")
        return drafter


def begin_learning(
    settings: DrafterSettings, target: Checkpoint, dtype: DTypeLike
) -> LearningStart:
    """Return the version to begin with; versions that cannot be loaded are rejected.

    It is the newest promoted version that a process has loaded before, or the drafter that the
    settings name; other versions are loaded later, beside serving. Where no drafter is known, it is
    the one that the trainer makes of the target's layers: not promoted before it pays, it
    determines which features to record. Raises ModelError if the named drafter cannot be loaded, or
    OSError.
    """
    directory = settings.learning.directory
    store = VersionStore(directory or default_cache_dir() / "learn" / target.fingerprint)
    named = _settle(store, settings, target, dtype)
    logged = False
    while True:
        ready = [v for v in store.promoted() if v.loads or v.kind != "learned"]
        version = next(iter(ready), None) or store.initialized() or store.current()
        if version is None:
            if not logged:
                logger.info(
                    "no drafter is known for this target: waiting for the one that "
                    "`blockdraft learn run` makes of the target's own layers"
                )
            logged = True
            time.sleep(_POLL_SECONDS)
            continue
        path, drafter = store.path(version.number), named
        try:
            if drafter is None or drafter.fingerprint != version.fingerprint:
                drafter = load_any(path, target, block_size=settings.block_size, dtype=dtype)
            return LearningStart(settings, target, dtype, store, version, drafter)
        except ModelError as error:
            logger.warning("version %d is rejected: %s", version.number, error)
            store.reject(version.number, str(error))


def _settle(
    store: VersionStore, settings: DrafterSettings, target: Checkpoint, dtype: DTypeLike
) -> Drafter[Any] | None:
    """Settle the named drafter in the store and return it; None if no drafter is known."""
    try:
        source = find_checkpoint(settings.drafter, target, target_spec=settings.target)
    except NoDrafterError:
        return None
    named = obtain_drafter(
        str(source or settings.drafter),
        target,
        block_size=settings.block_size,
        num_layers=settings.draft_layers,
        dtype=dtype,
    )

    def write(folder: Path) -> None:
        if source is None:
            save_drafter(named.model, folder, named.draft_ids)
        else:
            copy_checkpoint(source, folder)

    store.settle(named.fingerprint, write)
    return named
