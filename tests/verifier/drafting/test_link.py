"""What a handshake must say, and the stream to a real drafter."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from tests.certificates import Authority, write_peer
from tests.drafter.process import running_drafter, tiny_drafter_config, write_tiny_target
from tests.models.tiny import tiny_config
from tests.patience import PATIENCE_SECONDS
from tests.verifier.drafting.by_hand import DESCRIPTION

from blockdraft_drafter.metrics import DrafterMetrics
from blockdraft_drafter.service import DrafterService
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_protos.v1 import debug_pb2_grpc
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_protos.v1.drafter_pb2_grpc import (
    DrafterServiceServicer,
    DrafterServiceStub,
    add_DrafterServiceServicer_to_server,
)
from blockdraft_runtime.channel import BackoffPolicy
from blockdraft_runtime.credentials import peer_server_credentials
from blockdraft_runtime.process import DebugService
from blockdraft_runtime.settings.process import PeerTlsSettings
from blockdraft_runtime.shared_memory import NOT_MAPPED, SharedFile
from blockdraft_verifier.device.cache import FeatureStore, Positions
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting import feature_writers
from blockdraft_verifier.drafting import link as link_module
from blockdraft_verifier.drafting.feature_writers import MessageWriter, SharedWriter
from blockdraft_verifier.drafting.handshake import DrafterDescription, check_description
from blockdraft_verifier.drafting.link import (
    DraftTransport,
    GrpcDraftLink,
    GrpcDraftTransport,
)

GOOD: dict[str, Any] = {
    "method": "dflash",
    "block_size": 8,
    "target_layer_ids": [0, 29],
    "feature_width": 1152,
    "feature_dtype": pb.DATA_TYPE_BFLOAT16,
    "max_feature_rows": 256,
    "max_context_tokens": 2048,
    "fingerprint": "0" * 16,
    "step_seconds": [0.01, 0.02],
    "shortest_step_seconds": [0.002],
}


PROJECTION = pb.FeatureProjection(input_width=1152)


def test_a_good_handshake_is_read() -> None:
    response = pb.DrafterServiceDescribeResponse(**GOOD)
    check_description(response, num_layers=30, hidden_size=576)
    description = DrafterDescription.from_proto(response, FeatureForm((0, 29)))
    assert description.feature_row_bytes == 2 * 1152
    assert description.step_seconds == (0.01, 0.02)
    assert description.shortest_step_seconds == (0.002,)
    assert not description.trained


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_layer_ids": [0, 30]}, "of a target of 30 layers"),
        ({"target_layer_ids": [-1, 3]}, "of a target of 30 layers"),
        ({"target_layer_ids": []}, "of a target of 30 layers"),
        ({"feature_width": 1151}, "features of 1151 elements"),
        ({"feature_dtype": pb.DATA_TYPE_FLOAT32}, "another type than bfloat16"),
        ({"block_size": 1}, "nothing to draft"),
        ({"max_feature_rows": 0}, "nothing to draft"),
        ({"projection": PROJECTION, "feature_width": 1153}, "1153 elements out of 1152"),
        ({"projection": pb.FeatureProjection(input_width=1151)}, "features of 1151 elements"),
        ({"projection": PROJECTION, "feature_width": 0}, "0 elements out of 1152"),
    ],
)
def test_an_impossible_handshake_is_refused(changes: dict[str, Any], message: str) -> None:
    response = pb.DrafterServiceDescribeResponse(**{**GOOD, **changes})
    with pytest.raises(ValueError, match=message):
        check_description(response, num_layers=30, hidden_size=576)


async def connected(link: GrpcDraftLink) -> DraftTransport:
    transport = await asyncio.to_thread(link.wait, PATIENCE_SECONDS)
    assert transport is not None
    return transport


async def test_a_drafter_on_this_host_shares_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_tiny_target(tmp_path / "target")
    async with running_drafter(tiny_drafter_config(target), tmp_path / "s") as address:
        link = GrpcDraftLink(address, load_checkpoint_config(target))
        try:
            transport = await connected(link)
            assert isinstance(transport.feature_writer, SharedWriter)
            # Its name is gone; the memory goes with both processes.
            assert not [path for path in tmp_path.iterdir() if path.name.startswith("shared-")]
            assert await asyncio.to_thread(drafted_through_memory, transport) == [8, 9]
            # Without room for it, features go in messages.
            monkeypatch.setattr(feature_writers, "SHARED_BYTES", 1 << 60)
            link.lost(transport)
            assert type((await connected(link)).feature_writer) is MessageWriter
        finally:
            link.close()


async def test_a_start_waits_for_a_drafter_while_it_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PROGRESS_SECONDS", 1.0)
    target = write_tiny_target(tmp_path / "target")
    looks = itertools.count()

    def inspect() -> dict[str, object]:
        # It gets no further after a while, although its estimate changes.
        look = next(looks)
        return {"stage": "compiling drafts", "done": min(look, 12), "words": f"about {look} s"}

    server, address = grpc.aio.server(), f"unix:{tmp_path}/s"
    debug_pb2_grpc.add_DebugServiceServicer_to_server(DebugService("drafter", inspect), server)
    loading = DrafterService(DrafterMetrics(CollectorRegistry()))
    add_DrafterServiceServicer_to_server(loading, server)
    server.add_insecure_port(address)
    link = GrpcDraftLink(address, load_checkpoint_config(target))
    try:
        # Nobody is there.
        assert await asyncio.to_thread(link.wait_while_it_loads, 0.5) is None
        await server.start()
        assert await asyncio.to_thread(link.wait_while_it_loads, 0.5) is None
        assert next(looks) > 12
    finally:
        link.close()
        await server.stop(None)
    async with running_drafter(tiny_drafter_config(target), tmp_path / "s") as address:
        link = GrpcDraftLink(address, load_checkpoint_config(target))
        try:
            assert await asyncio.to_thread(link.wait_while_it_loads, 0.5) is not None
        finally:
            link.close()


def drafted_through_memory(transport: DraftTransport) -> list[int]:
    """Bring 8 and 1 features through shared memory; return what the drafter says it holds."""
    width = transport.description.feature_width
    store = FeatureStore(4, 4, width)
    values = np.random.default_rng(0).standard_normal((9, width)).astype(ml_dtypes.bfloat16)
    store.write([0, 1, 2], 0, values)
    lengths = []
    for step, (start, stop) in enumerate([(0, 8), (8, 9)], start=1):
        positions = Positions([0, 1, 2], start, stop)
        request = pb.DraftRequest(step_id=step)
        request.sequences.add(
            sequence_id=1,
            context_start=start,
            feature_rows=positions.rows,
            anchor_token_id=1,
            draft_length=3,
        )
        transport.feature_writer.write(request.features, step, store, [positions])
        assert request.features.HasField("shared_offset")
        transport.send(request)
        response = transport.receive(PATIENCE_SECONDS)
        assert response is not None
        lengths.append(response.drafts[0].context_length)
    return lengths


class StubbornDrafter(DrafterServiceServicer):
    """Describes itself well, and takes a stream when it is told to, or not at all."""

    def __init__(self, *, taken: bool = False) -> None:
        self.calls: list[float] = []
        self.taken = asyncio.Event()
        if taken:
            self.taken.set()
        self.refuses = False
        self.says_why_after = 0.0

    async def Describe(  # noqa: N802
        self, request: pb.DrafterServiceDescribeRequest, context: Any
    ) -> pb.DrafterServiceDescribeResponse:
        width = 2 * tiny_config().hidden_size
        sizes = {"target_layer_ids": [0, 1], "feature_width": width, "max_context_tokens": 64}
        return pb.DrafterServiceDescribeResponse(**{**GOOD, **sizes})

    async def FetchProjection(  # noqa: N802
        self, request: pb.FetchProjectionRequest, context: Any
    ) -> AsyncIterator[pb.FetchProjectionResponse]:
        raise AssertionError("no projection was described")
        yield

    async def Draft(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.DraftRequest], context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        self.calls.append(time.monotonic())
        if self.refuses:
            if self.says_why_after:
                await context.send_initial_metadata(())
                await asyncio.sleep(self.says_why_after)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "one stream is enough")
        await self.taken.wait()
        await context.send_initial_metadata(NOT_MAPPED)
        async for request in request_iterator:
            yield pb.DraftResponse(step_id=request.step_id)


@asynccontextmanager
async def serving(
    drafter: StubbornDrafter, address: str, tls: PeerTlsSettings | None = None
) -> AsyncIterator[None]:
    server = grpc.aio.server()
    add_DrafterServiceServicer_to_server(drafter, server)
    credentials = peer_server_credentials(address, tls)
    if credentials is None:
        server.add_insecure_port(address)
    else:
        server.add_secure_port(address, credentials)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


Connect = Callable[..., GrpcDraftLink]


@pytest.fixture
def connect(tmp_path: Path, address: str) -> Iterator[Connect]:
    """Make links to the address, which are closed in the end."""
    target = load_checkpoint_config(write_tiny_target(tmp_path / "target"))
    links: list[GrpcDraftLink] = []

    def connect(tls: PeerTlsSettings | None = None) -> GrpcDraftLink:
        links.append(GrpcDraftLink(address, target, tls))
        return links[-1]

    yield connect
    for link in links:
        link.close()


@pytest.fixture
def address(unused_tcp_port: int) -> str:
    """Return a port, where no memory is shared."""
    return f"localhost:{unused_tcp_port}"


async def test_a_drafter_on_another_host_shows_a_certificate_and_wants_one(
    tmp_path: Path, address: str, connect: Connect
) -> None:
    tls = write_peer(tmp_path, Authority("peers"))
    async with serving(StubbornDrafter(taken=True), address, tls):
        link, plain = connect(tls), connect()
        assert type((await connected(link)).feature_writer) is MessageWriter
        assert plain.current() is None


async def test_a_drafter_that_comes_back_with_another_authority_is_believed_with_the_files(
    tmp_path: Path, address: str, connect: Connect
) -> None:
    old, new = Authority("old"), Authority("new")
    ours, theirs = (write_peer(tmp_path / name, old) for name in ("ours", "theirs"))
    async with serving(StubbornDrafter(taken=True), address, theirs):
        link = connect(ours)
        first = await connected(link)
    link.lost(first)
    write_peer(tmp_path / "theirs", new)
    async with serving(StubbornDrafter(taken=True), address, theirs):
        assert await asyncio.to_thread(link.wait, 1.0) is None
        write_peer(tmp_path / "ours", new)
        await connected(link)


@pytest.fixture
async def drafter(address: str) -> AsyncIterator[StubbornDrafter]:
    drafter = StubbornDrafter()
    async with serving(drafter, address):
        yield drafter


async def test_a_drafter_is_there_once_it_has_taken_the_stream(
    drafter: StubbornDrafter,
    connect: Connect,
) -> None:
    link = connect()
    assert await asyncio.to_thread(link.wait, 1.0) is None
    assert len(drafter.calls) == 1
    drafter.taken.set()
    transport = await connected(link)
    transport.send(pb.DraftRequest(step_id=1))
    response = await asyncio.to_thread(transport.receive, PATIENCE_SECONDS)
    assert response == pb.DraftResponse(step_id=1)


async def test_a_drafter_that_never_takes_the_stream_is_asked_again(
    drafter: StubbornDrafter,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(link_module, "HANDSHAKE_TIMEOUT_SECONDS", 0.3)
    link = connect()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(drafter.calls) < 3:
            await asyncio.sleep(0.01)
    assert caplog.text.count("did not say within 0.3 s that it takes the stream") == 1
    drafter.taken.set()
    await connected(link)


@pytest.mark.parametrize("says_why_after", [0.0, 0.01])
async def test_a_refused_stream_is_no_connection(
    drafter: StubbornDrafter,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    says_why_after: float,
) -> None:
    monkeypatch.setattr(link_module, "RECONNECTING", BackoffPolicy(0.02, 5.0))
    drafter.refuses, drafter.says_why_after = True, says_why_after
    link = connect()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(drafter.calls) < 6:
            assert link.current() is None
            await asyncio.sleep(0.001)
    # Pauses grow: the sixth call comes after five, of at least half of 20, 40, 80, 160, 320 ms.
    assert drafter.calls[5] - drafter.calls[0] >= 0.3
    assert "connected" not in caplog.text
    assert caplog.text.count("no drafting: one stream is enough") == 1


class NoDrafter(DrafterServiceStub):
    """A stub whose channel is closed, or whose calls are refused."""

    def __init__(self, call: Any = None) -> None:
        self.call = call

    def Draft(  # type: ignore[override]  # noqa: N802
        self, requests: Any, metadata: Any
    ) -> Any:
        if self.call is None:
            raise ValueError("Cannot invoke RPC on closed channel!")
        return self.call


class RefusedCall(grpc.RpcError):
    """A call that was refused."""

    def initial_metadata(self) -> Any:
        return ()

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize(
    ("stub", "error"),
    [(NoDrafter(), ValueError), (NoDrafter(RefusedCall()), RefusedCall)],
    ids=["closed", "refused"],
)
def test_without_a_stream_no_memory_is_kept(
    tmp_path: Path, stub: Any, error: type[Exception]
) -> None:
    shared = SharedFile.create(tmp_path, 4096)
    with pytest.raises(error):
        GrpcDraftTransport(stub, DESCRIPTION, shared)
    assert not shared.path.exists()
    assert shared.memory.closed
