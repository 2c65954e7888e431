"""The stream to a verifier over a real socket."""

import asyncio

import pytest
from tests.fakes.verifier import FakeVerifier, completion, running_verifier
from tests.patience import PATIENCE_SECONDS
from tests.server.support import until

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_server.routing.link import VerifierLink
from blockdraft_server.routing.verifier_stream import BrokenOffError

REQUEST = verifier_pb2.SequenceRequest(
    prompt_token_ids=[1, 2], sampling=inference_pb2.SamplingOptions(max_output_tokens=20)
)


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
        assert await take_all(link) == completion([1, 2], 20)
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


@pytest.mark.parametrize(
    ("gains", "others", "blamed_ones"),
    [
        # The first of each tenant, and nobody behind them.
        ([], "a a a b b b c", [True, True, False, True, True, False, True]),
        # The first replays, whosever they are.
        ([], "a ra rb rc", [True, True, True, False]),
        # Who gained tokens has a place and leaves fewer to be blamed on others.
        (["a"], "a a b b", [True, True, False, True, False]),
    ],
)
async def test_a_death_is_blamed_on_those_who_may_have_been_running(
    gains: list[str], others: str, blamed_ones: list[bool]
) -> None:
    fake = FakeVerifier(delay_seconds=0.3 if gains else 2 * PATIENCE_SECONDS)
    fake.description.max_sequences = 2
    async with running_verifier(fake) as address:
        link = VerifierLink(address)
        await link.poll()
        calls = [asyncio.ensure_future(blamed(link, tenant.encode())) for tenant in gains]
        await until(lambda: len(fake.requests) == len(gains))
        # The pause before the second message is the one that lasts.
        fake.delay_seconds = 2 * PATIENCE_SECONDS
        await until(lambda: fake.sent == len(gains))
        for name in others.split():
            replay = name.startswith("r")
            call = blamed(link, name.removeprefix("r").encode(), replay=replay)
            calls.append(asyncio.ensure_future(call))
        await until(lambda: len(fake.requests) == len(calls))
        fake.die()
        assert await asyncio.gather(*calls) == blamed_ones
        await link.close()


async def test_what_was_heard_before_the_stream_broke_makes_no_verifier_healthy() -> None:
    async with running_verifier(FakeVerifier()) as address:
        link = VerifierLink(address)
        look = asyncio.ensure_future(link.poll())
        # The answers are on their way when the stream breaks.
        await asyncio.sleep(0)
        link.lost()
        await look
        assert not link.healthy
        await link.poll()
        assert link.healthy
        await link.close()
