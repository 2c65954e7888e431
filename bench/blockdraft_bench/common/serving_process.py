"""A process that serves something to this one, for as long as a `with` block lasts.

It ends when its pipe to this process is closed, which also happens when this process dies.
"""

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from blockdraft_bench.common.errors import BenchError

START_SECONDS = 60.0
STOP_SECONDS = 10.0

# Called once with the address; returns when it is time to end.
Serving = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """A process that serves.

    Attributes:
        address: Where.
        process_id: Its number.
    """

    address: str
    process_id: int


@contextlib.contextmanager
def serving_process(
    name: str, serve: Callable[..., Awaitable[None]], *arguments: Any
) -> Iterator[ServingProcess]:
    """Run `serve` in a process of its own for as long as the `with` block.

    Args:
        name: What to call the process in errors, such as "drafter".
        serve: A coroutine function at the top of a module. Its first argument is a `Serving`, to
            be awaited with the address as soon as it serves.
        *arguments: Its other arguments.

    Raises:
        BenchError: If it does not come up.
    """
    # A fork would take over the threads' locks, but not the threads of gRPC and jax.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, serve, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        yield ServingProcess(_address(ours, name), process.pid)
    finally:
        ours.close()
        process.join(STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _address(pipe: Connection, name: str) -> str:
    try:
        if not pipe.poll(START_SECONDS):
            raise BenchError(f"the {name}'s process is not up after {START_SECONDS:.0f} s")
        address: str = pipe.recv()
    except EOFError as error:
        raise BenchError(f"the {name}'s process ended before it served") from error
    return address


def _run(pipe: Connection, serve: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    # Ctrl-C reaches both processes; the other one then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve(pipe, serve, *arguments))


async def _serve(pipe: Connection, serve: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    async def serving(address: str) -> None:
        closed = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), closed.set)
        pipe.send(address)
        await closed.wait()

    await serve(serving, *arguments)
