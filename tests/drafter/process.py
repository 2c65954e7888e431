"""A whole drafter process inside the test's event loop, on a unix socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from flax import nnx
from prometheus_client import CollectorRegistry
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_drafter.app import DrafterApp
from blockdraft_models.decoder.model import Decoder
from blockdraft_runtime.credentials import peer_server_credentials
from blockdraft_runtime.process import serve
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.process import ProcessSettings


def write_tiny_target(directory: Path, num_layers: int = 5) -> Path:
    """Write a random target of a few kilobytes."""
    config = tiny_config(num_layers=num_layers)
    write_hf_checkpoint(Decoder(config, rngs=nnx.Rngs(0)), directory)
    return directory


def tiny_drafter_config(target: Path, drafter: str = "random") -> DrafterSettings:
    """A drafter of one layer and blocks of 4, with room for 2 sequences of 64 positions."""
    return DrafterSettings(
        target=str(target),
        drafter=drafter,
        max_sequences=2,
        max_model_len=64,
        max_feature_rows=8,
        block_size=4,
        draft_layers=1,
        feature_form="raw",
        dtype="float32",
    )


@asynccontextmanager
async def running_drafter(
    config: DrafterSettings, place: Path | str, registry: CollectorRegistry | None = None
) -> AsyncIterator[str]:
    """Serve until the block ends; yields the address once the drafter is ready.

    `place` is a path for a socket, or an address.
    """
    address = place if isinstance(place, str) else f"unix:{place}"
    stop, ready = asyncio.Event(), asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    process = ProcessSettings(address, drain_seconds=5.0)
    application = DrafterApp(
        replace(config, process=process), stop, registry or CollectorRegistry()
    )
    serving = asyncio.ensure_future(
        serve(
            application,
            process,
            credentials=peer_server_credentials(address, config.peer_tls),
            stop_requested=stop,
            on_ready=on_ready,
        )
    )
    waiting = asyncio.ensure_future(ready.wait())
    try:
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            await serving
        yield address
    finally:
        waiting.cancel()
        stop.set()
        await serving
