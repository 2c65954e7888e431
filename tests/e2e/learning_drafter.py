"""A drafter that learns, and what tests do to it."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
from flax import nnx
from prometheus_client import CollectorRegistry
from tests.drafter.learning.kept import closed
from tests.fakes.drafting import SessionLink
from tests.verifier.support import make_engine

from blockdraft_drafter.app import load_method
from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.learning.observer import StreamObserver
from blockdraft_drafter.learning.samples import SampleStore, TrainingSample
from blockdraft_drafter.learning.serving import ServingVersion
from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_drafter.service import LoadedMethod
from blockdraft_drafter.sources import load_any
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_runtime.settings.drafter import DrafterSettings, LearningSettings
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest


@dataclass
class Target:
    decoder: Decoder
    path: Path
    checkpoint: Checkpoint


@dataclass
class Learning:
    """A drafter that learns, and what can be done to its versions."""

    target: Target
    directory: Path
    registry: CollectorRegistry
    loaded: LoadedMethod

    @property
    def serving(self) -> ServingVersion:
        assert self.loaded.serving is not None
        return self.loaded.serving

    @property
    def store(self) -> VersionStore:
        return VersionStore(self.directory)

    @property
    def method(self) -> CompiledMethod:
        assert isinstance(self.loaded.method, CompiledMethod)
        return self.loaded.method

    @property
    def current(self) -> int:
        """The version that shall serve."""
        return self.store.promoted()[0].number

    def engine(self) -> Engine:
        link = SessionLink(self.loaded.method, learn=lambda: StreamObserver(self.serving))
        return make_engine(self.target.decoder, link)

    def poll(self) -> None:
        asyncio.run(self.serving.poll())

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"blockdraft_drafter_{name}", labels) or 0.0

    def learned(self, seed: int, value: float | None = None) -> int:
        """Add a version with other weights behind the same projection, or with one `value`."""
        base = load_any(self.store.path(1), self.target.checkpoint, block_size=4, dtype=jnp.float32)
        model = type(base.model)(base.model.config, rngs=nnx.Rngs(seed))
        model.fc.weight[...] = base.model.fc.weight[...]
        if isinstance(model, DFlash):
            model.hidden_norm.scale[...] = base.model.hidden_norm.scale[...]
        if value is not None:
            model.norm.scale[...] = jnp.full_like(model.norm.scale[...], value)
        return self.store.add(
            lambda folder: save_drafter(model, folder),
            kind="learned",
            fingerprint=f"{seed:016x}",
            parent=1,
        ).number

    def promoted(self, seed: int, value: float | None = None) -> int:
        """Add such a version and promote it."""
        number = self.learned(seed, value)
        self.store.promote(number)
        return number

    def recorded(self) -> list[TrainingSample]:
        closed(self.serving.recorder)
        self.serving.close()
        samples = SampleStore(self.directory / "samples", 1)
        return [samples.read(name) for name in samples.names()]


def begin(target: Target, directory: Path, drafter: str = "random") -> Learning:
    registry = CollectorRegistry()
    settings = DrafterSettings(
        target=str(target.path),
        drafter=drafter,
        max_sequences=4,
        max_model_len=96,
        max_feature_rows=4,
        block_size=4,
        dtype="float32",
        learning=LearningSettings(enabled=True, directory=directory),
    )
    loaded = load_method(settings, counts=LearningMetrics(registry))
    return Learning(target, directory, registry, loaded)


def copied(checkpoint: Path, folder: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(checkpoint / name, folder / name)


def allowed(requests: Sequence[GenerationRequest], which: int = -1) -> list[GenerationRequest]:
    """Let all requests be recorded, or every second one."""
    return [replace(r, recordable=which < 0 or i % 2 == which) for i, r in enumerate(requests)]
