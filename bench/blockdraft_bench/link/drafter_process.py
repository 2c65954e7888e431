"""The drafter's side: a process that serves an instant drafter as `blockdraft drafter` would.

It imports no jax.
"""

import contextlib
from collections.abc import Iterator

import grpc
from prometheus_client import CollectorRegistry

from blockdraft_bench.common.serving_process import Serving, serving_process
from blockdraft_bench.engine.instant_drafter import InstantRoom, instant_drafter
from blockdraft_drafter.metrics import DrafterMetrics
from blockdraft_drafter.service import DrafterService
from blockdraft_protos.v1.drafter_pb2_grpc import add_DrafterServiceServicer_to_server
from blockdraft_runtime.channel import SERVER_OPTIONS
from blockdraft_runtime.shared_memory import socket_folder


@contextlib.contextmanager
def drafter_process(listen: str, room: InstantRoom) -> Iterator[str]:
    """Run a drafter in a process of its own for as long as the `with` block; give its address.

    Args:
        listen: Where it listens; with port 0, at a port that is free.
        room: What it takes and holds.

    Raises:
        BenchError: If it does not come up.
    """
    with serving_process("drafter", _serve, listen, room) as process:
        yield process.address


async def _serve(serving: Serving, listen: str, room: InstantRoom) -> None:
    # As `DrafterApp` and `blockdraft_runtime.process` put it together.
    metrics = DrafterMetrics(CollectorRegistry())
    service = DrafterService(metrics, socket_folder(listen))
    service.serve(instant_drafter(room))
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_DrafterServiceServicer_to_server(service, server)
    port = server.add_insecure_port(listen)
    await server.start()
    host, _, given = listen.rpartition(":")
    await serving(f"{host}:{port}" if given == "0" else listen)
    service.drain()
    await server.stop(None)
