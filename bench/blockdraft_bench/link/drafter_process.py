"""The drafter's side: a process that serves an instant drafter as `blockdraft drafter` would.

It imports no jax, and ends when its pipe to the measuring process is closed, which also happens
when that process dies.
"""

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection

import grpc
import uvloop
from prometheus_client import CollectorRegistry

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.engine.instant_drafter import InstantRoom, instant_drafter
from blockdraft_drafter.metrics import DrafterMetrics
from blockdraft_drafter.service import DrafterService
from blockdraft_protos.v1.drafter_pb2_grpc import add_DrafterServiceServicer_to_server
from blockdraft_runtime.channel import SERVER_OPTIONS
from blockdraft_runtime.shared_memory import socket_folder

START_SECONDS = 60.0
STOP_SECONDS = 10.0


@contextlib.contextmanager
def drafter_process(listen: str, room: InstantRoom) -> Iterator[str]:
    """Run a drafter in a process of its own for as long as the `with` block; give its address.

    Args:
        listen: Where it listens; with port 0, at a port that is free.
        room: What it takes and holds.

    Raises:
        BenchError: If it does not come up.
    """
    # A fork would take over the threads' locks, but not the threads of gRPC and jax.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, listen, room), daemon=True)
    process.start()
    theirs.close()
    try:
        yield _address(ours)
    finally:
        ours.close()
        process.join(STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _address(pipe: Connection) -> str:
    try:
        if not pipe.poll(START_SECONDS):
            raise BenchError(f"the drafter's process is not up after {START_SECONDS:.0f} s")
        address: str = pipe.recv()
    except EOFError as error:
        raise BenchError("the drafter's process ended before it served") from error
    return address


def _run(pipe: Connection, listen: str, room: InstantRoom) -> None:
    # Ctrl-C reaches both processes; the other one then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve(pipe, listen, room))


async def _serve(pipe: Connection, listen: str, room: InstantRoom) -> None:
    # As `DrafterApp` and `blockdraft_runtime.process` put it together.
    metrics = DrafterMetrics(CollectorRegistry())
    service = DrafterService(metrics, socket_folder(listen))
    service.serve(instant_drafter(room))
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_DrafterServiceServicer_to_server(service, server)
    port = server.add_insecure_port(listen)
    await server.start()
    closed = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), closed.set)
    host, _, given = listen.rpartition(":")
    pipe.send(f"{host}:{port}" if given == "0" else listen)
    await closed.wait()
    service.drain()
    await server.stop(None)
