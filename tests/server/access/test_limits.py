"""Limits of tenants, seen by callers."""

import asyncio

import grpc
from tests.fakes.verifier import FakeVerifier, running_verifier
from tests.server.support import (
    Running,
    failure,
    running_server,
    settings_for,
    text_request,
    until,
    whole,
)

from blockdraft_server.access.tenants import digest_of


def line(name: str, key: str, limits: str = "") -> str:
    return f"{name} sha256:{digest_of(key).hex()} {limits}"


async def generate(server: Running, key: str, output_tokens: int) -> None:
    request = whole(text_request(max_output_tokens=output_tokens))
    await server.stub.Generate(request, metadata=(("authorization", f"Bearer {key}"),))


async def test_who_is_over_its_limits_is_refused_and_others_are_not() -> None:
    fake = FakeVerifier(delay_seconds=0.02)
    keys = [line("acme", "a", "max-requests=1"), line("beta", "b", "max-tokens=20"), "c"]
    async with (
        running_verifier(fake) as address,
        running_server(settings_for(address), api_keys=keys) as server,
    ):
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
        await asyncio.gather(generate(server, "b", 18), generate(server, "c", 40), first)
        await generate(server, "a", 1)
        outcomes = {
            (tenant, outcome): server.metric(
                "tenant_requests_total", tenant=tenant, outcome=outcome
            )
            for tenant in ("acme", "beta", "unnamed")
            for outcome in ("length", "resource_exhausted")
        }
        assert outcomes == {
            ("acme", "length"): 2,
            ("acme", "resource_exhausted"): 1,
            ("beta", "length"): 1,
            ("beta", "resource_exhausted"): 1,
            ("unnamed", "length"): 1,
            ("unnamed", "resource_exhausted"): 0,
        }
        assert server.metric("tenant_tokens_total", tenant="beta", kind="output") == 18
        assert server.metric("tenant_tokens_total", tenant="beta", kind="prompt") == 2
    # What was refused reached no verifier.
    assert len(fake.requests) == 4


async def test_the_names_of_many_tenants_make_few_series() -> None:
    keys = [line(f"tenant-{number}", f"key-{number}") for number in range(102)]
    async with (
        running_verifier(FakeVerifier()) as address,
        running_server(settings_for(address), api_keys=keys) as server,
    ):
        for number in range(102):
            await generate(server, f"key-{number}", 1)
        named = [
            server.metric("tenant_requests_total", tenant=f"tenant-{n}", outcome="length")
            for n in range(102)
        ]
        assert sum(named) == 100
        assert server.metric("tenant_requests_total", tenant="other", outcome="length") == 2
