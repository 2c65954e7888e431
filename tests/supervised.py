"""What a supervisor runs, by name; and one that runs for as long as a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
from tests.patience import PATIENCE_SECONDS

from blockdraft_server.supervise.supervisor import Supervisor


def process_ids(supervisor: Supervisor) -> dict[str, int]:
    """Return the running children's process ids."""
    return {name: child.pid for name, child in supervisor.children.items()}


def serving(supervisor: Supervisor) -> set[str]:
    """Return the running children that others wait for and that have become ready."""
    return {
        name
        for name, child in supervisor.children.items()
        if child.spec.health_address and child.ready_since is not None
    }


@asynccontextmanager
async def running(
    supervisor: Supervisor, *, wait: bool = True
) -> AsyncIterator[tuple[asyncio.Event, asyncio.Task[None]]]:
    """Run until the context ends; waits until every child was ready unless told not to."""
    stop, ready = asyncio.Event(), asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    task = asyncio.create_task(supervisor.run(stop, on_ready))
    if wait:
        await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
    try:
        yield stop, task
    finally:
        stop.set()
        if not task.cancelled():
            await asyncio.wait_for(task, PATIENCE_SECONDS)


def child_of(process_id: int, role: str) -> psutil.Process:
    """Return the process of a role, which `blockdraft serve` has started."""
    children = psutil.Process(process_id).children(recursive=True)
    return next(child for child in children if f"blockdraft_{role}" in child.cmdline())
