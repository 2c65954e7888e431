"""The drafter's side: a process that responds at once, and else serves as `blockdraft drafter`.

It imports no jax. It ends when its pipe to this process is closed, which also happens when this
process dies.
"""

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import grpc
import ml_dtypes
import numpy as np
import uvloop
from prometheus_client import CollectorRegistry

from blockdraft_bench.errors import BenchError
from blockdraft_drafter.method import DraftRow, DraftTokens, MethodSpec
from blockdraft_drafter.metrics import DrafterMetrics
from blockdraft_drafter.service import DrafterService, LoadedMethod
from blockdraft_drafter.session import SlotPool
from blockdraft_protos.v1.drafter_pb2_grpc import add_DrafterServiceServicer_to_server
from blockdraft_runtime.channel import SERVER_OPTIONS
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.shared_memory import socket_folder

# The size of Llama 3's vocabulary: token ids take as many bytes on the wire as they really do.
VOCAB_SIZE = 128_256
# Fingerprint of a target that does not exist.
NO_TARGET = "0" * 16
# As common drafters have them: an anchor and fifteen drafted tokens.
BLOCK_SIZE = 16
# A multiple of the page size. Longer contexts would take more memory and no more time: a step reads
# the newest positions only.
CONTEXT_TOKENS = 128
START_SECONDS = 60.0
STOP_SECONDS = 10.0


class InstantMethod:
    """A `DraftMethod` that neither keeps features nor computes: its drafts are made before."""

    # Not zero, which a cost model would take for unknown.
    step_seconds: Sequence[float] = (1e-6,)
    shortest_step_seconds: Sequence[float] = ()

    def __init__(self, width: int, max_sequences: int) -> None:
        """Make a draft of every length, for features of a width."""
        self.spec = MethodSpec(
            name="instant",
            block_size=BLOCK_SIZE,
            target_layer_ids=(0,),
            feature_width=width,
            feature_dtype=np.dtype(ml_dtypes.bfloat16),
            vocab_size=VOCAB_SIZE,
            max_sequences=max_sequences,
            max_context_tokens=CONTEXT_TOKENS,
            max_feature_rows=DrafterSettings().max_feature_rows,
            fingerprint=NO_TARGET,
            trained=False,
        )
        rng = np.random.default_rng(0)
        tokens = tuple(rng.integers(VOCAB_SIZE, size=BLOCK_SIZE - 1).tolist())
        self._drafts = [tokens[:length] for length in range(BLOCK_SIZE)]

    def warm_up(self) -> None:
        """There is nothing to compile."""

    def step(self, rows: Sequence[DraftRow]) -> list[DraftTokens]:
        """Return a made-up draft of each row's length."""
        return [self._drafts[row.draft_length] for row in rows]


@contextlib.contextmanager
def drafter_process(listen: str, width: int, max_sequences: int) -> Iterator[str]:
    """Run a drafter in a process of its own for as long as the `with` block; yield its address.

    It listens at `listen`, at a free port if that has port 0.
    """
    # A fork would take over the threads' locks, but not the threads of gRPC and jax.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, listen, width, max_sequences), daemon=True)
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


def _run(pipe: Connection, listen: str, width: int, max_sequences: int) -> None:
    # Ctrl-C reaches both processes; the other one then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    method = InstantMethod(width, max_sequences)
    uvloop.run(_serve(pipe, listen, LoadedMethod(method, SlotPool(max_sequences), NO_TARGET)))


async def _serve(pipe: Connection, listen: str, drafter: LoadedMethod) -> None:
    # As `DrafterApp` and `blockdraft_runtime.process` put it together.
    service = DrafterService(DrafterMetrics(CollectorRegistry()), socket_folder(listen))
    service.serve(drafter)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_DrafterServiceServicer_to_server(service, server)
    port = server.add_insecure_port(listen)
    await server.start()
    closed = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), closed.set)
    host, _, listen_port = listen.rpartition(":")
    pipe.send(f"{host}:{port}" if listen_port == "0" else listen)
    await closed.wait()
    service.drain()
    await server.stop(None)
