"""Load on a real gRPC server that is slow, refuses or hangs up."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.fakes.inference import MODEL, TOKEN_IDS, FakeInference, RunningFake, running_fake

from blockdraft_bench.errors import BenchError
from blockdraft_bench.run import Run
from blockdraft_bench.serve.generator import (
    Clock,
    LoadRequest,
    Sender,
    closed_loop,
    open_loop,
    poisson_arrivals,
)
from blockdraft_bench.serve.measure import measure_loads
from blockdraft_bench.serve.record import Records, RequestRecord, RunKey
from blockdraft_bench.serve.settings import LoadSettings, LoadTestSettings, Objectives
from blockdraft_bench.serve.summary import load_table, summaries
from blockdraft_bench.service import RunningService, ServiceConnection
from blockdraft_bench.settings import OutputSettings
from blockdraft_bench.store import ResultStore
from blockdraft_client import AsyncClient
from blockdraft_client.model_info import ModelInfo
from blockdraft_models.sampling_options import Sampling
from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_verifier.scheduling.sequence import GenerationRequest

TIMEOUT_SECONDS = 30.0
# Two messages, each after a pause.
PAUSE_SECONDS = 0.15
FULL = ServiceError(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "too many")

LOAD = LoadSettings(
    concurrency=(2,),
    rate=(50.0,),
    requests=4,
    warm_up=1,
    flush_tokens=100,
    timeout_seconds=TIMEOUT_SECONDS,
)


@dataclass
class CountingInference(FakeInference):
    """Knows how many streams it is asked for at once."""

    in_flight: int = 0
    most_in_flight: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def StreamGenerate(  # noqa: N802
        self, request: inference_pb2.StreamGenerateRequest, context: Any
    ) -> Iterator[inference_pb2.StreamGenerateResponse]:
        with self.lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            yield from super().StreamGenerate(request, context)
        finally:
            with self.lock:
                self.in_flight -= 1


@pytest.fixture
def counting() -> CountingInference:
    return CountingInference(delay_seconds=PAUSE_SECONDS)


@pytest.fixture
def fake(counting: CountingInference) -> Iterator[RunningFake]:
    with running_fake(service=counting) as running:
        yield running


@pytest.fixture
def quick(fake: RunningFake, counting: CountingInference) -> RunningFake:
    """Return the server without its pauses."""
    counting.delay_seconds = 0.0
    return fake


def requests(count: int) -> list[LoadRequest]:
    return [
        LoadRequest(
            number,
            GenerationRequest(
                f"sample {number}",
                (number, number + 1),
                sampling=Sampling(temperature=0.5, seed=number),
                max_output_tokens=6,
            ),
            ("drafted", "plain", "learning")[number % 3],
        )
        for number in range(count)
    ]


def test_poisson_arrivals() -> None:
    arrivals = poisson_arrivals(4.0, 20_001, seed=3)
    between = np.diff(arrivals)
    assert arrivals[0] == 0.0
    # Exponential: mean and deviation are both 1 / rate, and 1/e of the between exceed the mean.
    assert between.mean() == pytest.approx(0.25, rel=0.03)
    assert between.std() == pytest.approx(0.25, rel=0.03)
    assert np.mean(between > 0.25) == pytest.approx(np.exp(-1.0), abs=0.015)
    # The same pattern at another rate, and for fewer requests; another one for another seed.
    np.testing.assert_allclose(poisson_arrivals(8.0, 20_001, seed=3), arrivals / 2)
    np.testing.assert_array_equal(poisson_arrivals(4.0, 100, seed=3), arrivals[:100])
    assert not np.allclose(poisson_arrivals(4.0, 100, seed=4)[1:], arrivals[1:100])
    assert poisson_arrivals(4.0, 1, seed=3).tolist() == [0.0]


async def press(
    target: str, count: int, in_flight: int = 1, timeout_seconds: float = TIMEOUT_SECONDS
) -> list[RequestRecord]:
    async with AsyncClient(target, retry=None) as client:
        return await closed_loop(requests(count), in_flight, Sender(client, timeout_seconds))


async def test_a_record_says_what_was_sent_and_when_it_came(
    fake: RunningFake, counting: CountingInference
) -> None:
    [first, second, _] = await press(fake.target, 3)
    asked_all = counting.requests
    asked = asked_all[1]
    assert list(asked.prompt.token_ids.values) == [1, 2]
    assert (asked.sampling.temperature, asked.sampling.seed) == (0.5, 1)
    assert asked.sampling.max_output_tokens == 6
    said = [(each.speculation.disabled, each.speculation.learning_disabled) for each in asked_all]
    assert said == [(False, True), (True, True), (False, False)]
    assert (second.request, second.sample_id) == (1, "sample 1")
    assert second.token_ids == TOKEN_IDS
    assert second.chunk_tokens == (3, 3)
    assert (second.finish_reason, second.error) == ("stop", None)
    assert (second.prompt_tokens, second.cached_prompt_tokens) == (4, 1)
    assert (second.verification_steps, second.accepted_tokens) == (2, 3)
    assert first.ended <= second.scheduled <= second.sent
    # The second message may follow close on the first one, if that was late.
    begin, end = second.chunk_times
    assert begin - second.sent >= PAUSE_SECONDS
    assert end - second.sent >= 2 * PAUSE_SECONDS
    assert second.ttft == begin - second.scheduled
    assert second.ended >= end > begin


async def test_a_closed_loop_keeps_as_many_in_flight(
    fake: RunningFake, counting: CountingInference
) -> None:
    records = await press(fake.target, 13, 4)
    assert [record.request for record in records] == list(range(13))
    assert counting.most_in_flight == 4
    ends = sorted(record.ended for record in records)
    for number, record in enumerate(records):
        # The first four at once, each of the others as soon as a place is free.
        free = 0.0 if number < 4 else ends[number - 4]
        assert free <= record.sent


async def test_an_open_loop_sends_on_time_however_slow_the_service(
    fake: RunningFake, counting: CountingInference
) -> None:
    arrivals = poisson_arrivals(60.0, 24, seed=0)
    counting.gate.clear()
    async with AsyncClient(fake.target) as client:
        sender = Sender(client, TIMEOUT_SECONDS)

        async def answered_after_all_are_sent(
            request: LoadRequest, due: float, clock: Clock
        ) -> RequestRecord:
            if request.number == 23:
                counting.gate.set()
            return await sender(request, due, clock)

        records = await open_loop(requests(24), arrivals, answered_after_all_are_sent)
    for record, due in zip(records, arrivals, strict=True):
        assert record.scheduled == due
        assert due <= record.sent
        assert record.error is None
    # The server takes 8 at a time, so the last 8 get their turn after two rounds of two pauses.
    assert counting.most_in_flight == 8
    assert records[-1].chunk_times[0] > 5 * PAUSE_SECONDS
    assert records[-1].ttft == records[-1].chunk_times[0] - arrivals[-1]


async def test_failures_become_records(fake: RunningFake, counting: CountingInference) -> None:
    counting.error, counting.messages_before_error = FULL, 1
    [broken] = await press(fake.target, 1)
    counting.error, counting.delay_seconds = None, 0.5
    [slow] = await press(fake.target, 1, timeout_seconds=0.2)
    [lost] = await press("127.0.0.1:1", 1)
    assert broken.error == "QUEUE_FULL"
    assert broken.token_ids == TOKEN_IDS[:3]
    assert slow.error == "DeadlineExceededError"
    assert lost.error == "ConnectionFailedError"
    assert not any(record.succeeded for record in (broken, slow, lost))


POOL = [GenerationRequest(f"sample {i}", (i,), max_output_tokens=6) for i in range(3)]


def measure(fake: RunningFake, path: Path, **more: Any) -> dict[RunKey, Records]:
    connection = ServiceConnection(fake.target, "", False, TIMEOUT_SECONDS)
    service = RunningService(connection, ModelInfo.from_proto(MODEL))
    settings = LoadTestSettings(load=replace(LOAD, **more))
    store: ResultStore[Records] = ResultStore(Records, "settings", path / "levels.jsonl")
    with Run("serve", (), OutputSettings(path)) as run:
        return measure_loads(service, POOL, settings, store, run)


def test_every_load_with_every_method_in_turn(
    quick: RunningFake, counting: CountingInference, tmp_path: Path
) -> None:
    runs = measure(quick, tmp_path)
    assert [(key.level, key.method) for key in runs] == [
        (level, method) for level in LOAD.levels for method in ("drafted", "plain")
    ]
    asked = [
        (not request.speculation.disabled, request.sampling.max_output_tokens)
        for request in counting.requests
    ]
    warm_up = [(True, 6), (False, 6)]
    # 100 tokens do not fit into one prompt of a model with room for 64.
    flush = [(False, 1), (False, 1)]
    order = (True, False, False, True)
    assert asked == warm_up + [one for drafted in order for one in flush + [(drafted, 6)] * 4]
    fillers = [r.prompt.token_ids.values for r in counting.requests if r.sampling.ignore_eos]
    assert [len(ids) for ids in fillers] == [63, 37] * 4
    assert len({tuple(ids) for ids in fillers}) == 8
    # The pool begins again when it ends.
    [first, *_] = runs.values()
    samples = [record.sample_id for record in first.requests]
    assert samples == ["sample 0", "sample 1", "sample 2", "sample 0"]


def test_rounds_take_other_prompts_and_begin_with_the_other_method(
    quick: RunningFake, counting: CountingInference, tmp_path: Path
) -> None:
    runs = measure(quick, tmp_path, requests=2, rounds=2, warm_up=0, flush_tokens=0)
    assert [key.round for key in runs] == [0] * 4 + [1] * 4
    drafted = [not request.speculation.disabled for request in counting.requests[::2]]
    # Two levels: what came first at a level comes second in the next round.
    assert drafted == [True, False, False, True, False, True, True, False]
    for key, records in runs.items():
        samples = [record.sample_id for record in records.requests]
        # Of the pool's three, and from its beginning again.
        assert samples == (["sample 0", "sample 1"], ["sample 2", "sample 0"])[key.round]


def test_finished_runs_are_not_made_again(
    quick: RunningFake,
    counting: CountingInference,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = measure(quick, tmp_path)
    # As if the last run had been interrupted while it was written.
    path = tmp_path / "levels.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    counting.requests.clear()
    again = measure(quick, tmp_path)
    assert list(again) == list(runs)
    assert "taking over 3 of 4 results measured" in capsys.readouterr().err
    # Drafted at 50 a second came last: warm-up, two fillers and its own four requests.
    assert len(counting.requests) == 2 + 2 + 4
    assert {key: again[key] for key in list(runs) if key.method == "plain"} == {
        key: records for key, records in runs.items() if key.method == "plain"
    }
    counting.requests.clear()
    measure(quick, tmp_path)
    assert not counting.requests
    # More requests are another run.
    measure(quick, tmp_path, requests=5, rate=(), warm_up=0)
    assert len(counting.requests) == 2 * (2 + 5)


def test_failures_are_counted_and_do_not_end_the_benchmark(
    fake: RunningFake, counting: CountingInference, tmp_path: Path
) -> None:
    counting.error = FULL
    runs = measure(fake, tmp_path, warm_up=0, flush_tokens=0)
    results = summaries(runs, Objectives(1.0, 1.0))
    for found in results:
        assert (found["requests"], found["failed"]) == (4, 4)
        assert found["errors"] == {"QUEUE_FULL": 4}
        assert found["output_tokens_per_second"] == 0.0
    assert load_table(results).count("| 4 (4 QUEUE_FULL) | 0.0 | - |") == 4
    # Each was tried once: what is refused is counted, not hidden by trying again.
    assert len(counting.requests) == 4 * 4


def test_a_service_that_cannot_even_warm_up_is_said_so(
    fake: RunningFake, counting: CountingInference, tmp_path: Path
) -> None:
    counting.error = FULL
    with pytest.raises(BenchError, match="fails before the load begins: QUEUE_FULL"):
        measure(fake, tmp_path)
    assert not (tmp_path / "levels.jsonl").exists()
