"""Several server processes behind one port, with a verifier that needs no model."""

import asyncio
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import grpc
import pytest
from flax import nnx
from tests.command_lines import parse
from tests.fakes.verifier import FakeVerifier, completion, running_verifier, unix_address
from tests.models.tiny import tiny_config, write_hf_checkpoint
from tests.patience import PATIENCE_SECONDS
from tests.ports import free_ports
from tests.server.support import text_request, until, whole
from tests.supervised import process_ids, running, serving

from blockdraft_models.decoder.model import Decoder
from blockdraft_protos.v1 import inference_pb2_grpc
from blockdraft_runtime.channel import BackoffPolicy
from blockdraft_server.supervise.command import CONFIGURATION
from blockdraft_server.supervise.plan import ServePlan
from blockdraft_server.supervise.ports import held_port, refuse_taken_port
from blockdraft_server.supervise.supervisor import RestartPolicy, Supervisor

CONNECTIONS = 16


@pytest.fixture
def folder() -> Iterator[Path]:
    with unix_address() as address:
        yield Path(address.removeprefix("unix:")).parent


def requests_of(port: int) -> float:
    """Return how many requests the server with these metrics has ended."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_SECONDS
    ) as response:
        lines = response.read().decode().splitlines()
    name = "blockdraft_server_requests_total{"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def answers(address: str) -> None:
    """Ask over as many connections as make it sure that each server has some."""

    async def ask() -> None:
        # Channels of one process share connections unless told otherwise.
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            request = whole(text_request(max_output_tokens=8))
            response = await stub.Generate(request, timeout=PATIENCE_SECONDS)
            assert list(response.token_ids) == completion([1, 2], 8)

    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))


async def test_several_servers_answer_at_one_port(folder: Path) -> None:
    write_hf_checkpoint(Decoder(tiny_config(), rngs=nnx.Rngs(0)), folder / "target")
    port = free_ports(5)
    address = f"127.0.0.1:{port + 4}"
    flags = ["--servers", "2", "--listen", address, "--target", str(folder / "target")]
    flags += ["--metrics-port", str(port), "--no-drafter", "--drain-timeout", "2"]
    plan = ServePlan.of(CONFIGURATION.resolve(parse(CONFIGURATION, *flags), {}), folder, os.environ)
    servers = plan.children()[:2]
    # One that comes back takes connections before it answers; the test is done with them by then.
    supervisor = Supervisor(servers, RestartPolicy(backoff=BackoffPolicy(4.0, 4.0)))
    async with (
        running_verifier(FakeVerifier(), plan.verifier.process.address),
        running(supervisor),
    ):
        with pytest.raises(OSError, match=f"at --listen {address}: another process"):
            refuse_taken_port("--listen", address)
        await answers(address)
        ports = (port, port + 3)
        counts = [await asyncio.to_thread(requests_of, each) for each in ports]
        assert min(counts) > 0
        assert sum(counts) == CONNECTIONS
        first = process_ids(supervisor)["server"]
        os.kill(first, signal.SIGKILL)
        await until(lambda: "server" not in serving(supervisor))
        # The other one serves on, and the first comes back.
        await answers(address)
        await until(lambda: serving(supervisor) == {"server", "server-2"})
        assert process_ids(supervisor)["server"] != first
    refuse_taken_port("--listen", address)


def test_a_port_held_for_a_process_is_nobody_elses_and_its_own_again_and_again() -> None:
    with held_port() as port:
        for _ in range(2):
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind(("127.0.0.1", port))
            for address in ("127.0.0.1", "0.0.0.0"):
                # The kind that answers for metrics.
                WSGIServer((address, port), WSGIRequestHandler).server_close()
