"""Limits of tenants, seen by callers."""

import asyncio
import contextlib
import threading

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.patience import PATIENCE_SECONDS
from tests.server.support import (
    Running,
    bearer,
    failure,
    serving,
    text_request,
    until,
    whole,
)

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.settings.server import LimitsSettings
from blockdraft_server import metrics
from blockdraft_server.keys import digest_of
from blockdraft_server.prompts import TOKENIZERS


def line(name: str, key: str, limits: str = "") -> str:
    return f"{name} sha256:{digest_of(key).hex()} {limits}"


async def generate(server: Running, key: str, output_tokens: int) -> None:
    await server.generate(max_output_tokens=output_tokens, metadata=bearer(key))


async def test_who_is_over_its_limits_is_refused_and_others_are_not() -> None:
    fake = FakeVerifier(hold_after=1)
    keys = [line("acme", "a", "max-requests=1"), line("beta", "b", "max-tokens=20"), "c"]
    async with serving(fake, api_keys=keys) as server:
        first = asyncio.ensure_future(generate(server, "a", 40))
        await until(lambda: len(fake.requests) == 1)
        error = await failure(generate(server, "a", 1))
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (error.reason, error.metadata["limit"]) == ("TENANT_LIMIT", "max-requests")
        assert error.retry_after_seconds is not None
        assert error.metadata["request_id"]
        # The prompt has two tokens.
        error = await failure(generate(server, "b", 19))
        assert (error.reason, error.metadata["limit"]) == ("TENANT_LIMIT", "max-tokens")
        assert error.retry_after_seconds is None
        fake.go_on.set()
        await asyncio.gather(generate(server, "b", 18), generate(server, "c", 40), first)
        await generate(server, "a", 1)
        for tenant, answered, refused in (("acme", 2, 1), ("beta", 1, 1), ("unnamed", 1, 0)):
            for outcome, count in (("length", answered), ("tenant_limit", refused)):
                found = server.metric("tenant_requests_total", tenant=tenant, outcome=outcome)
                assert found == count, (tenant, outcome)
        assert server.metric("tenant_tokens_total", tenant="beta", kind="output") == 18
        assert server.metric("tenant_tokens_total", tenant="beta", kind="prompt") == 2
    # What was refused reached no verifier.
    assert len(fake.requests) == 4


async def test_the_names_of_many_tenants_make_few_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_MAX_TENANTS", 3)
    keys = [line(f"tenant-{number}", f"key-{number}") for number in range(5)]
    async with serving(FakeVerifier(), api_keys=keys) as server:
        for number in range(5):
            await generate(server, f"key-{number}", 1)
        for tenant, count in (("tenant-2", 1), ("tenant-3", 0), ("other", 2)):
            found = server.metric("tenant_requests_total", tenant=tenant, outcome="length")
            assert found == count


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_who_does_not_wait_any_longer_gives_the_place_back_at_once(how: str) -> None:
    # The first message never comes: as from a verifier whose places are all taken.
    fake = FakeVerifier(delay_seconds=2 * PATIENCE_SECONDS)
    keys = [line("acme", "a", "max-requests=1 max-tokens=42"), "other"]
    async with serving(fake, api_keys=keys) as server:
        for number in (1, 2):
            seconds = 0.3
            while len(fake.requests) < number:
                timeout = seconds if how == "deadline" else None
                call = server.generate(max_output_tokens=40, metadata=bearer("a"), timeout=timeout)
                if how == "cancel":
                    await until(lambda number=number: len(fake.requests) == number)  # type: ignore[misc]
                    call.cancel()
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                    await call
                # A busy machine may take longer than that to bring it to the verifier.
                seconds *= 2
            await until(lambda: fake.cancelled == len(fake.requests))
    assert server.metric("requests_waiting") == 0


async def test_a_text_that_waits_for_a_tokenizer_waits_no_longer_than_its_deadline() -> None:
    fake = FakeVerifier()
    fake.description.max_context_tokens = 8192
    blocked, texts = threading.Event(), []

    def encode(text: str) -> list[int]:
        texts.append(text)
        assert blocked.wait(PATIENCE_SECONDS)
        return [1, 2]

    limits = LimitsSettings(default_timeout_seconds=0.3)
    async with serving(fake, limits=limits) as server:
        tokenizer = server.tokenizer
        tokenizer.encode = encode  # type: ignore[method-assign]
        request = whole(text_request("x" * 5000))
        calls = [failure(server.stub.Generate(request)) for _ in range(TOKENIZERS + 3)]
        assert {error.reason for error in await asyncio.gather(*calls)} == {"DEADLINE_EXCEEDED"}
        assert server.metric("requests_waiting") == 0
        # On a busy machine, a deadline may pass before a thread has begun.
        begun = len(texts)
        assert begun <= TOKENIZERS
        blocked.set()
        # The others have left the queue.
        await server.stub.Tokenize(inference_pb2.TokenizeRequest(prompt=request.prompt))
        assert len(texts) == begun + 1
