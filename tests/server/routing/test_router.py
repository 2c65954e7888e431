import asyncio
import logging
import time
from typing import Any

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier, completion, running_verifier
from tests.server.support import (
    Running,
    failure,
    running_server,
    serving,
    settings_for,
    text_request,
    tokens_of,
    until,
    whole,
)

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.settings.server import LimitsSettings
from blockdraft_runtime.status import ServiceError, invalid_argument

PROMPT = [1, 2]
COUNT = 20  # 1 + 7 messages of at most 3 tokens


def busy_verifier(**knobs: Any) -> FakeVerifier:
    """A verifier that is asked only if there is no other."""
    fake = FakeVerifier(**knobs)
    fake.load.waiting_sequences = 100
    return fake


def computing_otherwise() -> FakeVerifier:
    """A busy verifier of the same target in another element type, say."""
    fake = busy_verifier()
    fake.description.computation_fingerprint = "f" * 16
    return fake


@pytest.mark.parametrize(
    ("broken_after", "code"),
    [
        *((after, grpc.StatusCode.UNAVAILABLE) for after in (0, 1, 4, 7)),
        *((after, grpc.StatusCode.CANCELLED) for after in (0, 3, 7)),
        # What gRPC says when a message was being written just then.
        *((after, grpc.StatusCode.INTERNAL) for after in (0, 3, 7)),
    ],
)
async def test_an_answer_broken_at_any_message_is_the_same(
    broken_after: int, code: grpc.StatusCode
) -> None:
    fake = FakeVerifier(break_after=[broken_after], break_code=code)
    async with serving(fake) as server:
        request = text_request(max_output_tokens=COUNT)
        messages = [message async for message in server.stub.StreamGenerate(request)]
        replays = server.metric("replays_total")
    token_ids = tokens_of(messages)
    assert token_ids == completion(PROMPT, COUNT)
    assert "".join(message.text for message in messages) == bytes(token_ids).decode()
    assert messages[-1].usage.output_tokens == COUNT
    assert messages[-1].usage.prompt_tokens == 2
    assert replays == 1
    assert len(fake.requests) == 2
    received = 0 if broken_after == 0 else 1 + 3 * (broken_after - 1)
    assert list(fake.requests[1].emitted_token_ids) == token_ids[:received]


async def test_an_answer_broken_at_every_message_is_the_same() -> None:
    # After a replay the first message holds one token, so each call gains exactly one.
    fake = FakeVerifier(break_after=[1] * (COUNT - 1))
    async with serving(fake) as server:
        response = await server.generate(max_output_tokens=COUNT)
    assert list(response.token_ids) == completion(PROMPT, COUNT)
    assert response.usage.output_tokens == COUNT
    assert len(fake.requests) == COUNT


async def test_a_verifier_that_never_gains_a_token_is_given_up() -> None:
    fake = FakeVerifier(break_always=True)
    limits = LimitsSettings(max_replays=2)
    async with serving(fake, limits=limits) as server:
        error = await failure(server.generate())
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "VERIFIER_UNAVAILABLE")
    assert error.metadata["replays"] == "2"
    assert len(fake.requests) == 3


async def test_a_prompt_must_fit_into_every_verifier() -> None:
    small = FakeVerifier()
    small.description.max_context_tokens = 9
    async with serving(small, FakeVerifier()) as server:
        error = await failure(server.generate("x" * 9))
    assert error.metadata["max_context_tokens"] == "9"


async def test_requests_wait_for_a_restarted_verifier() -> None:
    fake = FakeVerifier(hold_after=1)
    async with serving(fake) as server:
        stream = aiter(server.stream(max_output_tokens=COUNT))
        first = await anext(stream)
        await fake.crash()
        await server.until_healthy(False)
        refused = await failure(server.generate())
        assert refused.reason == "VERIFIER_UNAVAILABLE"
        async with running_verifier(FakeVerifier(), fake.address):
            rest = [message async for message in stream]
            await server.until_healthy(True)
    assert tokens_of((first, *rest)) == completion(PROMPT, COUNT)


@pytest.mark.parametrize("others", [0, 1])
async def test_a_broken_stream_waits_no_longer_than_told_for_its_computation(others: int) -> None:
    fake, limits = FakeVerifier(hold_after=1), LimitsSettings(recovery_seconds=0.2)
    fakes = [computing_otherwise() for _ in range(others)]
    async with serving(fake, *fakes, limits=limits) as server:
        call = server.generate(max_output_tokens=COUNT)
        await until(lambda: fake.sent == 1)
        await fake.crash()
        error = await failure(call)
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "VERIFIER_UNAVAILABLE")
    assert not any(other.requests for other in fakes)


async def test_a_verifier_that_comes_back_otherwise_does_not_go_on_with_an_answer() -> None:
    fake, other = FakeVerifier(hold_after=1), computing_otherwise()
    async with serving(fake, limits=LimitsSettings(recovery_seconds=1.0)) as server:
        call = server.generate(max_output_tokens=COUNT)
        await until(lambda: fake.sent == 1)
        await fake.crash()
        await server.until_healthy(False)
        async with running_verifier(other, fake.address):
            error = await failure(call)
            assert (error.reason, error.metadata["recovery_seconds"]) == (
                "VERIFIER_UNAVAILABLE",
                "1.0",
            )
            assert other.requests == []
            # What begins now is its own.
            await server.until_healthy(True)
            fresh = await server.generate(max_output_tokens=COUNT)
    assert list(fresh.token_ids) == completion(PROMPT, COUNT)


async def begun(server: Running, count: int, *fakes: FakeVerifier) -> list[int]:
    """Return how many of so many requests that run at the same time each verifier gets."""
    for fake in fakes:
        fake.hold_after = 0
    calls = [server.generate(max_output_tokens=4) for _ in range(count)]
    await until(lambda: sum(len(fake.requests) for fake in fakes) == count)
    for fake in fakes:
        fake.go_on.set()
    await asyncio.gather(*calls)
    return [len(fake.requests) for fake in fakes]


async def test_requests_go_to_the_least_busy_healthy_verifier() -> None:
    busy, idle, away = FakeVerifier(), FakeVerifier(), FakeVerifier()
    busy.load.running_sequences = 3
    async with serving(busy, idle, away) as server:
        await away.set_healthy(False)
        await until(lambda: server.healthy_verifiers == 2)
        assert await begun(server, 3, busy, idle, away) == [0, 3, 0]


async def test_own_calls_count_before_a_verifier_reports_them() -> None:
    fakes = [FakeVerifier(), FakeVerifier()]
    async with serving(*fakes) as server:
        assert await begun(server, 6, *fakes) == [3, 3]


async def test_a_broken_stream_breaks_all_its_sequences_and_each_goes_on() -> None:
    # The second to come breaks the stream that both are on.
    fake = FakeVerifier(hold_after=2, break_after=[None, 2])
    async with serving(fake) as server:
        texts = ["\x01\x02", "\x03\x04\x05"]
        requests = [whole(text_request(text, max_output_tokens=COUNT)) for text in texts]
        answers = asyncio.gather(*map(server.stub.Generate, requests))
        await until(lambda: fake.streams == 2)
        fake.go_on.set()
        responses = await answers
        assert server.metric("replays_total") == 2
    for text, response in zip(texts, responses, strict=True):
        assert list(response.token_ids) == completion(list(text.encode()), COUNT)
    assert (fake.streams, len(fake.requests)) == (2, 4)


async def test_a_refused_sequence_disturbs_no_other() -> None:
    fake = FakeVerifier(hold_after=1)
    async with serving(fake) as server:
        stream = aiter(server.stream(max_output_tokens=COUNT))
        first = await anext(stream)
        fake.refusal = invalid_argument("sampling.seed", "no such seed")
        error = await failure(server.generate())
        assert error.field == "sampling.seed"
        # Not a verifier that is away: it goes on taking requests.
        fake.refusal = None
        await server.generate(max_output_tokens=1)
        fake.go_on.set()
        rest = [message async for message in stream]
        assert server.metric("replays_total") == 0
    assert tokens_of((first, *rest)) == completion(PROMPT, COUNT)
    assert fake.streams == 1


async def test_a_sequence_that_a_draining_verifier_refuses_goes_to_another() -> None:
    draining, other = FakeVerifier(), busy_verifier()
    draining.refusal = ServiceError(grpc.StatusCode.UNAVAILABLE, "DRAINING", "shutting down")
    async with serving(draining, other) as server:
        response = await server.generate(max_output_tokens=COUNT)
    assert list(response.token_ids) == completion(PROMPT, COUNT)
    assert len(draining.requests) == len(other.requests) == 1


async def test_a_replay_that_a_full_verifier_refuses_is_tried_until_there_is_room() -> None:
    breaking, full = FakeVerifier(break_after=[2]), busy_verifier(full=3)
    async with serving(breaking, full) as server:
        # It goes nowhere else: the one that broke stays away.
        breaking.refusal = ServiceError(grpc.StatusCode.UNAVAILABLE, "DRAINING", "shutting down")
        response = await server.generate(max_output_tokens=COUNT)
    assert list(response.token_ids) == completion(PROMPT, COUNT)
    assert full.full == 0
    assert not breaking.requests[0].replay
    assert all(request.replay for request in full.requests)


async def test_a_new_request_that_one_verifier_refuses_goes_to_another() -> None:
    full, other = FakeVerifier(full=1), busy_verifier()
    async with serving(full, other) as server:
        response = await server.generate(max_output_tokens=COUNT)
        assert server.metric("replays_total") == 0
        # Only when all refuse is the caller told, once each was asked.
        full.full = other.full = 1
        error = await failure(server.generate(max_output_tokens=COUNT))
    assert list(response.token_ids) == completion(PROMPT, COUNT)
    assert (error.reason, error.retry_after_seconds) == ("QUEUE_FULL", 1.0)
    assert full.full == other.full == 0
    assert not any(request.replay for request in (*full.requests, *other.requests))


async def test_one_name_stands_for_one_target(caplog: pytest.LogCaptureFixture) -> None:
    first, second = FakeVerifier(), computing_otherwise()
    second.description.target_fingerprint = "f" * 16
    late_by_seconds = 0.0
    caplog.set_level(logging.ERROR, logger="blockdraft_server")

    async def served_target() -> str:
        model = await server.stub.GetModel(inference_pb2.GetModelRequest())
        return model.target_fingerprint

    async with (
        running_verifier(first) as address,
        running_verifier(second, healthy=False) as other,
        running_server(settings_for(address, other)) as server,
    ):
        server.app._pool._target._clock = lambda: time.monotonic() + late_by_seconds
        await second.set_healthy(True)
        await until(lambda: other in caplog.text)
        assert "f" * 16 in caplog.text
        await asyncio.gather(*(server.generate() for _ in range(6)))
        assert (len(first.requests), len(second.requests)) == (6, 0)
        assert await served_target() == "0123456789abcdef"
        # It may come back, so the other target does not take its place at once.
        await first.crash()
        await server.until_healthy(False)
        refused = await failure(server.generate())
        assert refused.reason == "VERIFIER_UNAVAILABLE"
        late_by_seconds = LimitsSettings().recovery_seconds
        await server.until_healthy(True)
        await server.generate()
        assert await served_target() == "f" * 16
    assert len(second.requests) == 1
    assert sum(other in record.getMessage() for record in caplog.records) == 1
