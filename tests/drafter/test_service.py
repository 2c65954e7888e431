"""A real drafter behind a real unix socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import pytest_asyncio
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry
from tests.drafter.builders import random_drafter
from tests.drafter.process import running_drafter, tiny_drafter_config, write_tiny_target
from tests.drafter.reference import reference_draft
from tests.drafter.requests import draft_request, sequence_draft, to_tensor
from tests.patience import PATIENCE_SECONDS
from tests.reasons import error_reason

from blockdraft_drafter import service
from blockdraft_drafter.app import SERVICE_NAME
from blockdraft_drafter.checkpoint import published_arrays, save_drafter
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.method import MethodLostError
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.weights.loading import load_checkpoint_config, load_embedding_and_head
from blockdraft_protos.v1 import drafter_pb2, drafter_pb2_grpc
from blockdraft_runtime.channel import CLIENT_OPTIONS
from blockdraft_runtime.shared_memory import SharedFile, is_mapped

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(
    target: Path, tmp_path_factory: pytest.TempPathFactory, registry: CollectorRegistry
) -> AsyncIterator[str]:
    """One drafter for all tests that leave it as it was."""
    place = tmp_path_factory.mktemp("drafter") / "s"
    async with running_drafter(tiny_drafter_config(target), place, registry) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module")
async def stub(address: str, registry: CollectorRegistry) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS) as channel:
        yield drafter_pb2_grpc.DrafterServiceStub(channel)
    await all_free(registry)


def used(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("blockdraft_drafter_kv_cache_sequences")


async def all_free(registry: CollectorRegistry) -> None:
    """Wait until no sequence holds a slot."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while used(registry):
            await asyncio.sleep(0.01)


def features(rows: int, width: int = 64, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((rows, width))
    return values.astype(ml_dtypes.bfloat16)


async def refusal(call: Awaitable[Any], reason: str) -> grpc.aio.AioRpcError:
    """Expect a call to be refused for a reason."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert error_reason(caught.value) == reason
    return caught.value


def error_metadata(error: grpc.aio.AioRpcError) -> dict[str, str]:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # an AioRpcError is a Call
    assert status is not None
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    return dict(info.metadata)


def describing(fingerprint: str) -> drafter_pb2.DrafterServiceDescribeRequest:
    return drafter_pb2.DrafterServiceDescribeRequest(target_fingerprint=fingerprint)


async def test_describe(stub: Any, target: Path) -> None:
    response = await stub.Describe(describing(load_checkpoint_config(target).fingerprint))
    assert response.method == "dflash"
    assert response.block_size == 4
    assert list(response.target_layer_ids) == [1, 2]
    assert response.feature_width == 2 * 32
    assert response.feature_dtype == drafter_pb2.DATA_TYPE_BFLOAT16
    limits = (response.max_sequences, response.max_context_tokens, response.max_feature_rows)
    assert limits == (2, 64, 8)
    assert len(response.fingerprint) == 16
    assert not response.trained
    assert len(response.step_seconds) == 2
    assert not response.shortest_step_seconds


async def test_a_drafter_of_raw_features_has_no_projection(stub: Any) -> None:
    call = stub.FetchProjection(drafter_pb2.FetchProjectionRequest(fingerprint="0" * 16))
    error = await refusal(call.read(), "NO_PROJECTION")
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_the_projection_can_be_fetched(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_PIECE_BYTES", 1000)
    fingerprint = load_checkpoint_config(target).fingerprint
    settings = replace(tiny_drafter_config(target, "random:3"), feature_form="projected")
    async with (
        running_drafter(settings, tmp_path / "s") as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub: Any = drafter_pb2_grpc.DrafterServiceStub(channel)
        response = await stub.Describe(describing(fingerprint))
        described = response.projection
        assert (response.feature_width, described.input_width) == (32, 64)
        assert described.dtype == drafter_pb2.DATA_TYPE_FLOAT32
        asked = drafter_pb2.FetchProjectionRequest(fingerprint=described.fingerprint)
        pieces = [piece.data async for piece in stub.FetchProjection(asked)]
        assert max(map(len, pieces)) <= 1000
        elements = np.frombuffer(b"".join(pieces), np.float32)
        projection = FeatureProjection(
            elements[: 32 * 64].reshape(32, 64), elements[32 * 64 :], described.norm_epsilon
        )
        assert projection.scale.shape == (32,)
        assert projection.fingerprint() == described.fingerprint
        asked.fingerprint = "0" * 16
        await refusal(stub.FetchProjection(asked).read(), "PROJECTION_MISMATCH")
        # Features are refused that have not been through it.
        call = stub.Draft()
        for step, (width, errors) in enumerate(((64, 1), (32, 0)), start=1):
            sent = sequence_draft(5, 0, features(3, width))
            await call.write(draft_request(step, [sent]))
            assert len((await call.read()).sequence_errors) == errors


async def test_describe_refuses_another_target(stub: Any, target: Path) -> None:
    error = await refusal(stub.Describe(describing("f" * 16)), "TARGET_MISMATCH")
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert error_metadata(error) == {
        "drafter_target_fingerprint": load_checkpoint_config(target).fingerprint,
        "target_fingerprint": "f" * 16,
    }
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Describe(describing(""))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_drafts_equal_the_reference(target: Path, tmp_path: Path) -> None:
    checkpoint = load_checkpoint_config(target)
    config = DFlashConfig.default_for(checkpoint.config, block_size=4, num_layers=1)
    drafter = random_drafter(config)
    save_drafter(drafter.model, tmp_path / "drafter")
    parts, _ = load_embedding_and_head(target, dtype=np.float32)
    sent = features(11)
    settings = tiny_drafter_config(target, str(tmp_path / "drafter"))
    async with (
        running_drafter(settings, tmp_path / "s") as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = drafter_pb2_grpc.DrafterServiceStub(channel).Draft()
        start = 0
        for step, end in enumerate((8, 9, 11), start=1):
            await call.write(draft_request(step, [sequence_draft(5, start, sent[start:end])]))
            response = await call.read()
            assert isinstance(response, drafter_pb2.DraftResponse)
            (draft,) = response.drafts
            start = end
            tokens, _ = reference_draft(
                published_arrays(drafter.model),
                config,
                np.asarray(parts.embedding),
                None,
                sent[:end].astype(np.float32),
                1,
                4,
            )
            assert list(draft.token_ids) == tokens.tolist()
            assert draft.context_length == end
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK


async def drafted(call: Any, tensors: list[drafter_pb2.Tensor]) -> list[int]:
    """Append features step by step; return what is drafted after the last of them."""
    tokens: list[int] = []
    start = 0
    for step, tensor in enumerate(tensors, start=1):
        request = draft_request(step, [sequence_draft(5, start, features(tensor.shape[0]))])
        request.features.CopyFrom(tensor)
        await call.write(request)
        response = await call.read()
        assert not response.sequence_errors
        start += tensor.shape[0]
        tokens = list(response.drafts[0].token_ids)
    await call.done_writing()
    return tokens


async def test_drafts_are_the_same_through_shared_memory(stub: Any, address: str) -> None:
    parts = [features(8)[:5], features(8)[5:]]
    expected = await drafted(stub.Draft(), [to_tensor(part) for part in parts])
    shared = SharedFile.create(Path(address.removeprefix("unix:")).parent, 4096)
    call = stub.Draft(metadata=shared.offer)
    assert is_mapped(await call.initial_metadata())
    shared.unlink()
    tensors = []
    for part, offset in zip(parts, (64, 1024), strict=True):
        shared.memory[offset : offset + part.nbytes] = part.tobytes()
        dtype = drafter_pb2.DATA_TYPE_BFLOAT16
        tensors.append(drafter_pb2.Tensor(shape=part.shape, dtype=dtype, shared_offset=offset))
    assert await drafted(call, tensors) == expected
    assert len(expected) == 3


@pytest.mark.parametrize("name", ["shared-" + "0" * 32, "../../etc/passwd"])
async def test_memory_that_cannot_be_mapped_is_done_without(stub: Any, name: str) -> None:
    call = stub.Draft(metadata=(("shared-memory", name), ("shared-memory-bytes", "4096")))
    assert is_mapped(await call.initial_metadata()) is False
    assert await drafted(call, [to_tensor(features(3))])


async def test_a_step_out_of_order_ends_the_stream(stub: Any) -> None:
    call = stub.Draft()
    await call.write(draft_request(2))
    error = await refusal(call.read(), "STEP_OUT_OF_ORDER")
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert error_metadata(error) == {"expected_step_id": "1", "step_id": "2"}


async def test_ended_and_cancelled_streams_free_their_slots(
    stub: Any, registry: CollectorRegistry
) -> None:
    both = [sequence_draft(1, 0, features(2)), sequence_draft(2, 0, features(2))]
    for end in ("done", "cancel", "break", "done"):
        call = stub.Draft()
        await call.write(draft_request(1, both))
        response = await call.read()
        assert len(response.drafts) == 2, response.sequence_errors
        assert used(registry) == 2
        if end == "done":
            await call.done_writing()
            await call.read()
        elif end == "cancel":
            call.cancel()
        else:
            await call.write(draft_request(7))
            with pytest.raises(grpc.aio.AioRpcError):
                await call.read()
        await all_free(registry)


async def test_metrics_count_what_happened(stub: Any, registry: CollectorRegistry) -> None:
    def values() -> dict[tuple[str, ...], float]:
        samples = [sample for metric in registry.collect() for sample in metric.samples]
        return {(sample.name, *sample.labels.values()): sample.value for sample in samples}

    call, before = stub.Draft(), values()
    pair = [sequence_draft(1, 0, features(3), draft_length=2), sequence_draft(2, 9, features(1))]
    await call.write(draft_request(1, pair))
    response = await call.read()
    timings = response.timings
    assert 0 < timings.compute_time.ToNanoseconds() < timings.total_time.ToNanoseconds()
    after, prefix = values(), "blockdraft_drafter_"
    for (name, *labels), count in {
        ("steps_total",): 1,
        ("drafts_total",): 1,
        ("drafted_tokens_total",): 2,
        ("appended_positions_total",): 3,
        ("refused_sequences_total", "context_mismatch"): 1,
        ("refused_sequences_total", "invalid_input"): 0,
        ("step_sequences_sum",): 2,
        ("step_seconds_count", "compute"): 1,
        ("recompilations_total",): 0,
    }.items():
        key = (prefix + name, *labels)
        assert after[key] - before[key] == count, key


async def test_draining_ends_the_stream_at_once(target: Path, tmp_path: Path) -> None:
    config = tiny_drafter_config(target)
    async with running_drafter(config, tmp_path / "s") as address:
        channel = grpc.aio.insecure_channel(address)
        call = drafter_pb2_grpc.DrafterServiceStub(channel).Draft()
        await call.write(draft_request(1))
        await call.read()
        read = asyncio.ensure_future(call.read())
    # The block waits for the process to stop: 5 s if the stream kept it alive.
    error = await refusal(read, "DRAINING")
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    await channel.close()


async def test_health_names_the_service(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        response = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
    assert response.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_drafter_that_cannot_draft_any_more_ends(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: CompiledMethod, rows: Any) -> Any:
        raise MethodLostError("no room")

    config = tiny_drafter_config(target)
    async with running_drafter(config, tmp_path / "s") as address:
        monkeypatch.setattr(CompiledMethod, "step", fail)
        async with grpc.aio.insecure_channel(address) as channel:
            call = drafter_pb2_grpc.DrafterServiceStub(channel).Draft()
            await call.write(draft_request(1, [sequence_draft(1, 0, features(2))]))
            await refusal(call.read(), "DRAFT_CACHE_LOST")
            health: Any = health_pb2_grpc.HealthStub(channel)
            serving = health_pb2.HealthCheckResponse.SERVING
            # Nobody but the method's failure has asked it to stop.
            async with asyncio.timeout(PATIENCE_SECONDS):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    while (await health.Check(health_pb2.HealthCheckRequest())).status == serving:
                        await asyncio.sleep(0.01)
