"""Versions of a drafter that kill or hang the process that loads them, under a real supervisor."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from flax import nnx
from tests.e2e import deadly_drafter
from tests.models.tiny import tiny_config, write_hf_checkpoint
from tests.patience import PATIENCE_SECONDS
from tests.supervised import serving

from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_models.decoder.model import Decoder
from blockdraft_runtime.settings.drafter import DrafterSettings, LearningSettings
from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_server.supervise.plan import DRAFTER, ChildSpec
from blockdraft_server.supervise.supervisor import Supervisor

ROOT = Path(__file__).parents[2]


def copy_of_the_first(store: VersionStore, *marks: str) -> int:
    """Add a version with the weights of the first one."""

    def write(folder: Path) -> None:
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(store.path(1) / name, folder / name)
        for mark in marks:
            (folder / mark).touch()

    return store.add(write, kind="learned", fingerprint="0" * 16, parent=1).number


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_version_that_kills_or_hangs_the_drafter_is_left_alone_after_two_deaths() -> None:
    with tempfile.TemporaryDirectory(prefix="deadly-") as name:
        folder = Path(name)
        write_hf_checkpoint(Decoder(tiny_config(num_layers=5), rngs=nnx.Rngs(0)), folder / "target")
        store = VersionStore(folder / "learn")
        settings = DrafterSettings(
            target=str(folder / "target"),
            drafter="random",
            max_sequences=1,
            max_model_len=64,
            max_feature_rows=8,
            dtype="float32",
            learning=LearningSettings(enabled=True, directory=folder / "learn"),
            process=ProcessSettings(f"unix:{folder}/drafter.sock", drain_seconds=1.0),
        )
        command = (sys.executable, deadly_drafter.__file__, *DRAFTER.flags(settings))
        environment = {**os.environ, "BLOCKDRAFT_CACHE": str(ROOT / ".cache" / "serve-tests")}
        spec = ChildSpec("drafter", command, settings.process.address, environment=environment)
        with (folder / "log").open("wb") as log:
            supervisor = Supervisor([spec], sink=log, hang_seconds=5.0)
            stop = asyncio.Event()
            running = asyncio.create_task(supervisor.run(stop))

            async def until(condition: Callable[[], bool]) -> None:
                async with asyncio.timeout(2 * PATIENCE_SECONDS):
                    while not condition():
                        # The service does not end for it.
                        assert not running.done(), running.exception()
                        await asyncio.sleep(0.05)

            def rejected(number: int) -> bool:
                return store.read(number).state == "rejected"

            def current() -> int:
                found = store.current()
                return 0 if found is None else found.number

            await until(lambda: "drafter" in serving(supervisor))
            for how in deadly_drafter.HOW:
                number = copy_of_the_first(store, how)
                store.promote(number)
                await until(partial(rejected, number))
                assert store.read(number).reason == "2 processes died while they tried it"
                await until(lambda: "drafter" in serving(supervisor))
                assert current() == 1
            # Whatever comes later is tried as ever.
            good = copy_of_the_first(store)
            store.promote(good)
            swapped = f"drafting with version {good} instead of 1".encode()
            await until(lambda: swapped in (folder / "log").read_bytes())
            assert current() == good
            stop.set()
            await running
