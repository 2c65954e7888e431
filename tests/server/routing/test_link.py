"""What is known of one verifier."""

import asyncio

from tests.fakes.verifier import FakeVerifier, running_verifier

from blockdraft_server.routing.link import VerifierLink


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
