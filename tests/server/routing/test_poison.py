"""Requests that kill verifiers, and the innocent ones beside them."""

import asyncio
import logging

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier, completion
from tests.server.support import (
    Running,
    failure,
    serving,
    until,
)

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.settings.server import LimitsSettings

POISON = [7, 7, 7]
COUNT = 50


def poisoned(delay_seconds: float = 0.0, poison_after: int = 1) -> FakeVerifier:
    return FakeVerifier(poison=POISON, poison_after=poison_after, delay_seconds=delay_seconds)


async def generate(server: Running, prompt: list[int]) -> inference_pb2.GenerateResponse:
    return await server.generate(bytes(prompt).decode(), max_output_tokens=COUNT)


async def test_a_request_that_kills_verifiers_is_refused_after_two_deaths(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = poisoned()
    async with serving(fake) as server:
        with caplog.at_level(logging.ERROR, logger="blockdraft_server"):
            error = await failure(generate(server, POISON))
        assert list((await generate(server, [1, 2])).token_ids) == completion([1, 2], COUNT)
    assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "POISON_REQUEST")
    assert (error.metadata["deaths"], error.metadata["emitted_tokens"]) == ("2", "2")
    assert error.metadata["request_id"] in caplog.text
    assert fake.deaths == [1, 1]


@pytest.mark.parametrize("poison_after", [0, 1, 5])
@pytest.mark.parametrize("verifiers", [1, 2])
async def test_the_innocent_beside_it_get_their_answers(verifiers: int, poison_after: int) -> None:
    # A verifier that comes back is the same computation under another process.
    fakes = [poisoned(0.01, poison_after) for _ in range(verifiers)]
    for fake in fakes:
        fake.description.max_sequences = 8
    async with serving(*fakes) as server:
        innocent = [[number, number + 1] for number in range(1, 1 + 3 * verifiers)]
        calls = [asyncio.ensure_future(generate(server, prompt)) for prompt in innocent]
        await until(lambda: sum(len(fake.requests) for fake in fakes) == len(innocent))
        error = await failure(generate(server, POISON))
        # Those that come while others are tried wait for it to end.
        late = await generate(server, [9])
        answers = await asyncio.gather(*calls)
    assert error.reason == "POISON_REQUEST"
    for prompt, response in zip([*innocent, [9]], [*answers, late], strict=True):
        assert list(response.token_ids) == completion(prompt, COUNT)
    deaths = [count for fake in fakes for count in fake.deaths]
    # Twice beside others, and once alone; sooner where the others are at another verifier.
    assert len(deaths) <= 3
    assert deaths.count(1) >= 1


async def test_verifiers_that_die_of_something_else_cost_nobody_an_answer() -> None:
    fake = FakeVerifier(delay_seconds=0.01, tokens_per_step=1)
    async with serving(fake) as server:
        prompts = [[number, 3] for number in range(1, 5)]
        calls = [asyncio.ensure_future(generate(server, prompt)) for prompt in prompts]
        for started in (4, 8):
            await until(lambda started=started: len(fake.requests) == started)  # type: ignore[misc]
            fake.die()
        answers = await asyncio.gather(*calls)
    # Those that had not gained much were under suspicion, and cleared.
    assert len(fake.deaths) == 2
    assert min(fake.deaths) > 1
    for prompt, response in zip(prompts, answers, strict=True):
        assert list(response.token_ids) == completion(prompt, COUNT)


async def test_what_another_server_may_have_caused_convicts_nobody() -> None:
    fake = poisoned()
    # More than this server has there: somebody else's.
    fake.load.running_sequences = 3
    limits = LimitsSettings(max_replays=1)
    async with serving(fake, limits=limits) as server:
        error = await failure(generate(server, POISON))
    # Nor does it go on for ever.
    assert error.reason == "VERIFIER_UNAVAILABLE"
    assert error.metadata["replays"] == "4"
    assert len(fake.deaths) == 5


async def test_a_suspect_that_finds_no_place_is_still_tried_alone() -> None:
    fake = FakeVerifier(delay_seconds=0.01, tokens_per_step=1)
    async with serving(fake) as server:
        prompts = [[number, 5] for number in range(1, 4)]
        calls = [asyncio.ensure_future(generate(server, prompt)) for prompt in prompts]
        await until(lambda: len(fake.requests) == 3)
        fake.die()
        await until(lambda: len(fake.requests) == 6)
        fake.full = 2
        fake.die()
        answers = await asyncio.gather(*calls)
    assert fake.full == 0
    for prompt, response in zip(prompts, answers, strict=True):
        assert list(response.token_ids) == completion(prompt, COUNT)
