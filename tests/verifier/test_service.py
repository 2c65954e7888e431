"""The verifier's service over a real socket."""

import asyncio
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.fakes.engine import FakeRunner
from tests.patience import PATIENCE_SECONDS
from tests.verifier.grammars import tiny_grammars
from tests.verifier.support import (
    CONFIG,
    TINY_ENGINE,
    decode,
    engine_over,
    error_of,
    random_requests,
    value_of,
)

from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_protos.v1.verifier_pb2_grpc import (
    VerifierServiceStub,
    add_VerifierServiceServicer_to_server,
)
from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_runtime.status import ServiceError, received_error
from blockdraft_verifier import app
from blockdraft_verifier.computation import Computation
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.engine.guards import StepWatch
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest
from blockdraft_verifier.service import Loaded, VerifierService

ENGINE = replace(
    TINY_ENGINE,
    scheduler=SchedulerSettings(
        max_sequences=2, max_step_tokens=8, max_context_tokens=96, max_waiting=4
    ),
)
COMPUTATION = Computation("0123456789abcdef", "float32", "float", "auto", "cpu", 1, "jaxlib")


class Gate:
    """Lets the engine run a step only when it is open; may be told to fail one."""

    def __init__(self) -> None:
        self.open, self.held = threading.Event(), threading.Event()
        self.open.set()
        self.failure: Exception | None = None

    def close(self) -> None:
        """Hold the next step; `held` is set when it has come."""
        self.held.clear()
        self.open.clear()

    def __call__(self, when: str) -> None:
        if when == "begins":
            if not self.open.is_set():
                self.held.set()
            assert self.open.wait(PATIENCE_SECONDS)
            if self.failure is not None:
                raise self.failure


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def engine(gate: Gate) -> Iterator[Engine]:
    engine = engine_over(FakeRunner(ENGINE, on_step=gate), ENGINE)
    yield engine
    gate.open.set()
    engine.stop()


class Sequence:
    """The messages of one sequence on a stream of its own."""

    def __init__(self, stub: Any, request: pb.SequenceRequest) -> None:
        self._call = stub.Decode(self._requests(request))

    async def _requests(self, request: pb.SequenceRequest) -> AsyncIterator[pb.DecodeRequest]:
        yield pb.DecodeRequest(sequence_id=1, begin=request)

    async def __aiter__(self) -> AsyncIterator[pb.SequenceTokens]:
        async for response in self._call:
            (message,) = response.sequences
            if message.HasField("error"):
                raise error_of(message)
            yield message

    def cancel(self) -> None:
        self._call.cancel()


@dataclass
class Served:
    service: VerifierService
    engine: Engine
    stub: Any

    def open(self) -> None:
        grammars = tiny_grammars()
        loaded = Loaded(self.engine, "tiny", COMPUTATION, CONFIG.vocab_size, grammars)
        self.service.open(loaded)

    def stream(self, request: GenerationRequest, **changes: Any) -> Sequence:
        """Begin a sequence; an iterator of its messages."""
        return Sequence(self.stub, self.request(request, **changes))

    @staticmethod
    def request(request: GenerationRequest, **changes: Any) -> pb.SequenceRequest:
        """Return the message that asks for it."""
        message = pb.SequenceRequest(
            request_id=request.request_id,
            prompt_token_ids=request.prompt,
            sampling=inference_pb2.SamplingOptions(
                **asdict(request.sampling), max_output_tokens=request.max_output_tokens
            ),
        )
        message.MergeFrom(pb.SequenceRequest(**changes))
        return message

    async def load(self) -> tuple[int, int, int]:
        load = await self.stub.GetLoad(pb.GetLoadRequest())
        assert load.total_pages == ENGINE.num_pages
        return load.running_sequences, load.waiting_sequences, load.used_pages

    async def until(self, wanted: Callable[[tuple[int, int, int]], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not wanted(await self.load()):
                await asyncio.sleep(0.005)

    async def arrived(self, count: int) -> None:
        """Wait until `count` calls have asked for something the engine has not looked at."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.engine._inbox) < count:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def served(engine: Engine, socket: Path) -> AsyncIterator[Served]:
    service = VerifierService()
    server = grpc.aio.server()
    add_VerifierServiceServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        yield Served(service, engine, VerifierServiceStub(channel))
    await server.stop(None)


@pytest.fixture
async def verifier(engine: Engine, tmp_path: Path) -> AsyncIterator[Served]:
    engine.start()
    async with served(engine, tmp_path / "s") as served_engine:
        served_engine.open()
        yield served_engine


LONG = GenerationRequest("long", (1, 2, 3), max_output_tokens=90)
SHORT = GenerationRequest("short", (4, 5), max_output_tokens=3)


async def collect(stream: Any) -> list[pb.SequenceTokens]:
    return [message async for message in stream]


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """Return the code and the reason a call ends with."""
    with pytest.raises((grpc.aio.AioRpcError, ServiceError)) as caught:
        await (collect(call) if hasattr(call, "__aiter__") else call)
    failure = caught.value
    error = received_error(failure) if isinstance(failure, grpc.RpcError) else failure
    assert isinstance(error, ServiceError)
    return error.code, error.reason


def tokens_of(messages: list[pb.SequenceTokens]) -> list[int]:
    return [token for message in messages for token in message.token_ids]


async def test_streams_say_what_the_engine_says(engine: Engine, tmp_path: Path) -> None:
    requests = random_requests(1, count=4)
    expected = decode(engine, requests)
    engine.start()
    async with served(engine, tmp_path / "s") as verifier:
        verifier.open()
        for pair in (requests[:2], requests[2:]):
            options = inference_pb2.SamplingOptions(log_probs=2)
            streams = [verifier.stream(request, sampling=options) for request in pair]
            for request, messages in zip(
                pair, await asyncio.gather(*map(collect, streams)), strict=True
            ):
                outcome = expected[requests.index(request)]
                assert tokens_of(messages) == outcome.tokens
                assert [m.HasField("usage") for m in messages] == [False] * (len(messages) - 1) + [
                    True
                ]
                assert {m.finish_reason for m in messages[:-1]} <= {0}
                assert messages[-1].finish_reason == inference_pb2.FINISH_REASON_LENGTH
                assert messages[-1].usage.prompt_tokens == len(request.prompt)
                assert messages[-1].usage.output_tokens == len(outcome.tokens)
                for message in messages:
                    assert len(message.log_probs) == len(message.token_ids)
                    assert all(len(entry.alternatives) == 2 for entry in message.log_probs)
        resumed = verifier.stream(requests[0], emitted_token_ids=expected[0].tokens[:1])
        if requests[0].max_output_tokens > 1:
            assert tokens_of(await collect(resumed)) == expected[0].tokens[1:]


async def test_cancelling_frees_the_pages(verifier: Served, gate: Gate) -> None:
    gate.close()
    stream = verifier.stream(LONG)
    await asyncio.to_thread(gate.held.wait, PATIENCE_SECONDS)
    running, _, used = await verifier.load()
    assert running == 1
    assert used > 0
    stream.cancel()
    await verifier.arrived(1)
    gate.open.set()
    await verifier.until(lambda load: load == (0, 0, 0))
    assert value_of(verifier.engine.metrics.output_tokens) < 90, "it ran to its end"
    assert len(tokens_of(await collect(verifier.stream(SHORT)))) == 3


async def test_loading_before_the_engine_is_there(engine: Engine, tmp_path: Path) -> None:
    async with served(engine, tmp_path / "s") as verifier:
        loading = (grpc.StatusCode.UNAVAILABLE, "LOADING")
        assert await refused(verifier.stream(SHORT)) == loading
        assert await refused(verifier.stub.GetLoad(pb.GetLoadRequest())) == loading
        describe = verifier.stub.Describe(pb.VerifierServiceDescribeRequest())
        assert await refused(describe) == loading


async def test_draining_refuses_the_new_and_ends_the_old(verifier: Served) -> None:
    stream = aiter(verifier.stream(LONG))
    first = await anext(stream)
    verifier.service.drain()
    draining = (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert await refused(verifier.stream(SHORT)) == draining
    rest = await collect(stream)
    assert len(tokens_of([first, *rest])) == 90


async def test_a_full_queue_is_refused_also_during_a_step(verifier: Served, gate: Gate) -> None:
    gate.close()
    streams = [verifier.stream(replace(LONG, max_output_tokens=4))]
    await asyncio.to_thread(gate.held.wait, PATIENCE_SECONDS)
    # The held step runs one, and another one may join it.
    coming = ENGINE.scheduler.max_waiting + 1
    for _ in range(coming):
        streams.append(verifier.stream(replace(LONG, max_output_tokens=4)))
    await verifier.arrived(coming)
    full = (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert await asyncio.wait_for(refused(verifier.stream(SHORT)), PATIENCE_SECONDS) == full
    gate.open.set()
    for messages in await asyncio.gather(*map(collect, streams)):
        assert len(tokens_of(messages)) == 4
    assert len(tokens_of(await collect(verifier.stream(SHORT)))) == 3


async def test_an_invalid_request_disturbs_no_other(verifier: Served) -> None:
    expected = tokens_of(await collect(verifier.stream(LONG)))
    stream = aiter(verifier.stream(LONG))
    first = await anext(stream)
    invalid = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert await refused(verifier.stream(replace(SHORT, prompt=(CONFIG.vocab_size,)))) == invalid
    assert await refused(verifier.stream(replace(SHORT, prompt=()))) == invalid
    too_long = (grpc.StatusCode.OUT_OF_RANGE, "PROMPT_TOO_LONG")
    assert await refused(verifier.stream(replace(SHORT, prompt=(1,) * 96))) == too_long
    assert tokens_of([first, *await collect(stream)]) == expected


async def test_describe(verifier: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    request = pb.VerifierServiceDescribeRequest()
    plain = pb.VerifierServiceDescribeResponse(
        model="tiny",
        target_fingerprint="0123456789abcdef",
        computation_fingerprint=COMPUTATION.fingerprint,
        vocabulary_size=CONFIG.vocab_size,
        max_context_tokens=96,
        max_sequences=2,
        kv_cache_tokens=ENGINE.num_pages * ENGINE.page_size,
        drafting=inference_pb2.Drafting(
            state=inference_pb2.DRAFTING_STATE_WITHOUT_DRAFTER, reason="none was started"
        ),
    )
    described = await verifier.stub.Describe(request)
    assert len(described.process) == 32
    plain.process = described.process
    assert described == plain
    drafter = DrafterDescription(
        "dflash", 8, FeatureForm((0, 2)), 64, 128, 96, "f" * 16, True, (0.1,)
    )
    monkeypatch.setattr(Engine, "drafter", property(lambda engine: drafter))
    plain.drafter.method = "dflash"
    plain.drafter.block_size = 8
    plain.drafter.fingerprint = "f" * 16
    plain.drafter.trained = True
    assert await verifier.stub.Describe(request) == plain


async def test_every_call_gets_an_error_of_its_own_while_the_model_is_loaded() -> None:
    service, frames = VerifierService(), []
    for _ in range(3):
        with pytest.raises(ServiceError, match="is starting") as raised:
            service._ready()
        frames.append(len(list(traceback.walk_tb(raised.value.__traceback__))))
    # The traceback of one that is raised again grows.
    assert frames[0] == frames[2]


async def test_a_failing_engine_tells_all_callers(
    verifier: Served, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.close()
    running = asyncio.ensure_future(refused(verifier.stream(LONG)))
    await asyncio.to_thread(gate.held.wait, PATIENCE_SECONDS)
    # This one comes while the step that fails is running.
    late = asyncio.ensure_future(refused(verifier.stream(LONG)))
    await verifier.arrived(1)
    gate.failure = RuntimeError("the device is gone")
    gate.open.set()
    stopped = (grpc.StatusCode.UNAVAILABLE, "ENGINE_STOPPED")
    assert await asyncio.wait_for(running, PATIENCE_SECONDS) == stopped
    assert await asyncio.wait_for(late, PATIENCE_SECONDS) == stopped
    assert await refused(verifier.stream(SHORT)) == stopped
    assert "the device is gone" in caplog.text


async def test_a_step_that_never_ends_is_noticed(
    verifier: Served, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By hand: a step may take a machine any time that is not too long for it.
    now = [0.0]
    left = asyncio.Event()
    monkeypatch.setattr(app, "_leave", lambda on_failure: left.set())
    monkeypatch.setattr(app, "_WATCH_SECONDS", 0.05)
    verifier.engine.watch = StepWatch(0.5, lambda: now[0])
    watching = asyncio.ensure_future(app._watch(verifier.engine, lambda: None))
    # Neither steps that end nor having nothing to do count.
    await collect(verifier.stream(SHORT))
    now[0] += 1.0
    await asyncio.sleep(0.5)
    assert not left.is_set()
    gate.close()
    stream = asyncio.ensure_future(collect(verifier.stream(SHORT)))
    await asyncio.to_thread(gate.held.wait, PATIENCE_SECONDS)
    now[0] += 1.0
    await asyncio.wait_for(left.wait(), PATIENCE_SECONDS)
    gate.open.set()
    await watching
    assert len(tokens_of(await stream)) == 3
