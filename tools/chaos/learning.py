"""The part of a stack that learns: a drafter on disk, its trainer, versions that come and go.

The trainer is a child as `serve --learn` plans it, but that it watches no verifier: here something
is decoded all the time. Promotions of its own are rare on a target of random weights, so versions
are promoted and gone back from meanwhile, as `blockdraft learn promote` and `rollback` do it.
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import jax.numpy as jnp
from flax import nnx
from tests.supervised import process_ids
from tools.chaos.load import Callers
from tools.chaos.schedule import Fault

from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.learning.samples import SampleStore
from blockdraft_drafter.learning.versions import VersionError, VersionStore
from blockdraft_drafter.sources import load_any, obtain_drafter
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_server.supervise.supervisor import Supervisor
from blockdraft_training.online.journal import Journal
from blockdraft_training.online.run import CONFIGURATION
from blockdraft_training.online.settings import LearnSettings

BLOCK_SIZE = 8
# Some sixty sequences of the eighty that are recorded: old ones go, and enough of those that stay
# are held out to be compared on, at least eight (of forty it were six to eight).
LIMIT_BYTES = 416 * 1024
SHARE = 0.9
EVERY_REQUESTS = 25
# Versions that are there to be exchanged.
ADDED = 3
# A drafter polls for another version once a second, and loads it for a moment.
_SOON_SECONDS = 1.5
_POLL_SECONDS = 0.25
# Weights that are half there: one of the versions that come and go.
_BROKEN = "a broken one"


def write_drafter(target: Path, folder: Path) -> None:
    """Write an untrained drafter for a target: one that is named, and so can be learned from."""
    checkpoint = load_checkpoint_config(target)
    drafter = obtain_drafter(
        "random", checkpoint, block_size=BLOCK_SIZE, num_layers=1, dtype=jnp.float32
    )
    save_drafter(drafter.model, folder)


def trainer_command(target: Path, drafter: Path, directory: Path) -> tuple[str, ...]:
    """Return what starts a trainer that makes steps and evaluations within a run."""
    settings = LearnSettings(
        target=str(target),
        directory=directory,
        drafter=str(drafter),
        threads=1,
        learning_rate=1e-3,
        # One length, and so few programs.
        max_length=64,
        confidence=0.6,
    )
    return (sys.executable, "-m", "tools.chaos.eager_trainer", *CONFIGURATION.flags(settings))


class Versions:
    """Versions that come and go while requests run.

    Attributes:
        store: Where they are.
        exchanges: How often another one was to serve.
    """

    def __init__(self, target: Path, directory: Path, seed: int) -> None:
        """Exchange nothing yet."""
        self.store = VersionStore(directory)
        self.exchanges = 0
        self._target = load_checkpoint_config(target)
        self._draw = random.Random(f"versions {seed}")

    def add_some(self) -> None:
        """Add versions with other weights behind the same projection, the last one broken."""
        path = self.store.path(1)
        base = load_any(path, self._target, block_size=BLOCK_SIZE, dtype=jnp.float32).model
        for number in range(ADDED):
            model = DFlash(base.config, rngs=nnx.Rngs(number))
            model.fc.weight[...] = base.fc.weight[...]
            model.hidden_norm.scale[...] = base.hidden_norm.scale[...]
            broken = number == ADDED - 1

            def write(folder: Path, model: DFlash = model, broken: bool = broken) -> None:
                save_drafter(model, folder)
                if broken:
                    weights = folder / "model.safetensors"
                    weights.write_bytes(weights.read_bytes()[:-9])

            self.store.add(
                write,
                kind="learned",
                fingerprint=f"{number:016x}",
                parent=1,
                reason=_BROKEN if broken else "another one",
            )

    def exchange(self) -> None:
        """Let another version serve; in three of ten cases the one before."""
        store, current = self.store, self.store.current()
        with suppress(VersionError):  # the trainer may have deleted it, or gone back first
            if len(store.promoted()) > 1 and self._draw.random() < 0.3:
                store.roll_back("by chance")
            else:
                others = [each.number for each in store.list() if each != current]
                store.promote(self._draw.choice(others), "by chance")
            self.exchanges += 1

    async def come_and_go(self, callers: Callers, requests: int) -> None:
        """Exchange versions whenever so many requests have begun."""
        for begun in range(EVERY_REQUESTS, requests, EVERY_REQUESTS):
            await callers.until(begun)
            await asyncio.to_thread(self.exchange)

    async def before(self, fault: Fault) -> None:
        """Let a fault of drafter or trainer meet an exchange, at some moment of it."""
        if fault.target in ("drafter", "trainer"):
            await asyncio.to_thread(self.exchange)
            await asyncio.sleep(self._draw.uniform(0.0, _SOON_SECONDS))


class Watch:
    """Polls samples and trainer all along.

    Attributes:
        recorded: Names of all samples that were seen.
        most_bytes: Most that they took at one time.
        trainers: Process ids of the trainer.
    """

    def __init__(self, directory: Path, supervisor: Supervisor) -> None:
        """See nothing yet."""
        self.recorded: set[str] = set()
        self.most_bytes = 0
        self.trainers: set[int] = set()
        self._directory = directory
        self._samples = SampleStore(directory / "samples", LIMIT_BYTES)
        self._supervisor = supervisor

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Poll for as long as the context lasts."""
        task = asyncio.ensure_future(self._run())
        try:
            yield
        finally:
            task.cancel()
            self._poll()

    async def _run(self) -> None:
        while True:
            self._poll()
            await asyncio.sleep(_POLL_SECONDS)

    def steps(self) -> int:
        """Return how many steps the trainer has made, but for those that it has not told of."""
        return Journal.read(self._directory).total_steps

    def _poll(self) -> None:
        self.recorded.update(self._samples.names())
        self.most_bytes = max(self.most_bytes, self._samples.size_bytes())
        if (trainer := process_ids(self._supervisor).get("trainer")) is not None:
            self.trainers.add(trainer)
