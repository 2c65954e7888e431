"""The stream to a verifier over a real socket."""

import asyncio

import pytest
from tests.fakes.verifier import FakeVerifier, answer, running_verifier
from tests.patience import PATIENCE_SECONDS
from tests.server.support import until

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_server.routing.decode_stream import BrokenOffError
from blockdraft_server.routing.link import VerifierLink

REQUEST = verifier_pb2.SequenceRequest(prompt_token_ids=[1, 2], max_output_tokens=20)


async def take_all(
    link: VerifierLink, request: verifier_pb2.SequenceRequest = REQUEST
) -> list[int]:
    token_ids: list[int] = []
    with link.decode(request) as feed:
        while True:
            message = await feed.take()
            token_ids.extend(message.token_ids)
            if message.finish_reason:
                return token_ids


async def test_a_broken_stream_leaves_nothing_behind() -> None:
    fake = FakeVerifier(break_after=[1, 1, 1])
    async with running_verifier(fake) as address:
        link = VerifierLink(address)
        await link.poll()
        before = asyncio.all_tasks()
        for _ in range(3):
            with pytest.raises(BrokenOffError, match="UNAVAILABLE"):
                await take_all(link)
        assert await take_all(link) == answer([1, 2], 20)
        assert fake.streams == 4
        await link.close()
        await until(lambda: asyncio.all_tasks() <= before)


async def test_a_stream_is_opened_once_and_closed_with_its_sequences() -> None:
    fake = FakeVerifier(delay_seconds=0.05)
    async with running_verifier(fake) as address:
        link = VerifierLink(address)
        await link.poll()
        assert link.load == 0
        tasks = [asyncio.ensure_future(take_all(link)) for _ in range(3)]
        await until(lambda: len(fake.requests) == 3)
        assert (fake.streams, link.load) == (1, 3)
        await link.close()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, BrokenOffError)
        assert link.load == 0


async def blamed(link: VerifierLink, tenant: bytes, *, replay: bool = False) -> bool:
    request = verifier_pb2.SequenceRequest()
    request.CopyFrom(REQUEST)
    request.cache_salt = tenant
    request.replay = replay
    with pytest.raises(BrokenOffError) as caught:
        await take_all(link, request)
    return caught.value.death is not None


async def test_a_death_is_blamed_on_the_first_of_each_tenant_and_on_nobody_behind_them() -> None:
    fake = FakeVerifier(delay_seconds=2 * PATIENCE_SECONDS)
    fake.description.max_sequences = 2
    async with running_verifier(fake) as address:
        link = VerifierLink(address)
        await link.poll()
        tenants = [b"a", b"a", b"a", b"b", b"b", b"b", b"c"]
        calls = [asyncio.ensure_future(blamed(link, tenant)) for tenant in tenants]
        await until(lambda: len(fake.requests) == len(tenants))
        fake.die()
        assert await asyncio.gather(*calls) == [True, True, False, True, True, False, True]
        await link.close()


async def test_a_death_is_blamed_on_the_first_replays_whosever_they_are() -> None:
    fake = FakeVerifier(delay_seconds=2 * PATIENCE_SECONDS)
    fake.description.max_sequences = 2
    async with running_verifier(fake) as address:
        link = VerifierLink(address)
        await link.poll()
        calls = [asyncio.ensure_future(blamed(link, b"a"))]
        calls += [
            asyncio.ensure_future(blamed(link, tenant, replay=True))
            for tenant in (b"a", b"b", b"c")
        ]
        await until(lambda: len(fake.requests) == len(calls))
        fake.die()
        assert await asyncio.gather(*calls) == [True, True, True, False]
        await link.close()


async def test_who_gained_tokens_has_a_place_and_leaves_fewer_to_be_blamed_on_others() -> None:
    fake = FakeVerifier(delay_seconds=0.3)
    fake.description.max_sequences = 2
    async with running_verifier(fake) as address:
        link = VerifierLink(address)
        await link.poll()
        first = asyncio.ensure_future(blamed(link, b"a"))
        # The pause before the second message is the one that lasts.
        await until(lambda: len(fake.requests) == 1)
        fake.delay_seconds = 2 * PATIENCE_SECONDS
        await until(lambda: fake.sent == 1)
        tenants = [b"a", b"a", b"b", b"b"]
        calls = [asyncio.ensure_future(blamed(link, tenant)) for tenant in tenants]
        await until(lambda: len(fake.requests) == 1 + len(tenants))
        fake.die()
        assert await asyncio.gather(first, *calls) == [True, True, False, True, False]
        await link.close()
