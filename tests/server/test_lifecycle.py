import asyncio
from pathlib import Path

import grpc
from tests.certificates import Authority, write_peer
from tests.fakes.verifier import FakeVerifier, completion, running_verifier, unix_address
from tests.patience import PATIENCE_SECONDS
from tests.server.support import (
    failure,
    running_server,
    serving,
    settings_for,
    tokens_of,
)

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.credentials import peer_server_credentials
from blockdraft_runtime.settings.server import LimitsSettings


async def test_serves_only_once_a_verifier_is_healthy() -> None:
    with unix_address() as address:
        async with running_server(settings_for(address), wait=False) as server:
            assert not await server.healthy()
            error = await failure(server.generate())
            assert error.code is grpc.StatusCode.UNAVAILABLE
            assert error.reason == "VERIFIER_UNAVAILABLE"
            error = await failure(server.stub.GetModel(inference_pb2.GetModelRequest()))
            assert error.reason == "VERIFIER_UNAVAILABLE"
            fake = FakeVerifier()
            async with running_verifier(fake, address, healthy=False):
                fake.start_message = "the verifier is compiling steps, 6 of 20"
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while error.reason != "LOADING":
                        error = await failure(server.generate())
                assert (error.reason, error.message) == ("LOADING", fake.start_message)
                error = await failure(server.stub.GetModel(inference_pb2.GetModelRequest()))
                assert error.reason == "LOADING"
                assert not await server.healthy()
                fake.start_message = None
                await fake.set_healthy(True)
                await server.until_healthy(True)
                assert await server.healthy("blockdraft.v1.InferenceService")
                await fake.set_healthy(False)
                await server.until_healthy(False)


async def test_a_stop_lets_calls_in_flight_end() -> None:
    fake = FakeVerifier(delay_seconds=0.05)
    async with serving(fake, drain_seconds=PATIENCE_SECONDS) as server:
        call = server.stream(max_output_tokens=20)
        messages = []
        async for message in call:
            messages.append(message)
            server.stop_requested.set()
    token_ids = tokens_of(messages)
    assert token_ids == completion([1, 2], 20)


async def test_an_old_connection_is_given_up_without_ending_its_calls() -> None:
    fake = FakeVerifier(delay_seconds=0.25)
    limits = LimitsSettings(max_connection_age_seconds=0.5)
    async with serving(fake, limits=limits) as server:
        call = server.stream(max_output_tokens=20)
        messages = aiter(call)
        await anext(messages)
        # Only one whose connection was given up leaves this state.
        await asyncio.wait_for(
            server.channel.wait_for_state_change(grpc.ChannelConnectivity.READY), PATIENCE_SECONDS
        )
        rest = [token async for message in messages for token in message.token_ids]
        assert rest[-5:] == completion([1, 2], 20)[-5:]
        # The next call opens another one.
        await server.generate(max_output_tokens=1)


async def test_a_verifier_that_comes_back_with_another_authority_is_believed_with_the_files(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    old, new, fake = Authority("old"), Authority("new"), FakeVerifier()
    tls = write_peer(ours, old)
    address = f"localhost:{unused_tcp_port}"
    before = peer_server_credentials(address, write_peer(theirs, old))
    async with (
        running_verifier(fake, address, credentials=before),
        running_server(settings_for(address, peer_tls=tls)) as server,
        running_server(settings_for(address), wait=False) as plain,
    ):
        await server.generate(max_output_tokens=5)
        # One that shows no certificate gets nowhere.
        assert (await failure(plain.generate())).reason == "VERIFIER_UNAVAILABLE"
        await fake.crash()
        await server.until_healthy(False)
        after = peer_server_credentials(address, write_peer(theirs, new))
        async with running_verifier(FakeVerifier(), address, credentials=after):
            assert not await server.healthy()
            write_peer(ours, new)
            await server.until_healthy(True)
            found = await server.generate(max_output_tokens=5)
            assert found.token_ids == completion([1, 2], 5)


async def test_a_draining_server_refuses_new_requests() -> None:
    async with serving(FakeVerifier()) as server:
        await server.app.drain()
        error = await failure(server.generate())
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_a_stop_while_waiting_for_a_verifier_takes_no_time_to_drain() -> None:
    drain_seconds = 10 * PATIENCE_SECONDS  # more than the end of `running_server` waits
    with unix_address() as address:
        settings = settings_for(address)
        async with running_server(settings, wait=False, drain_seconds=drain_seconds) as server:
            assert not await server.healthy()
            server.stop_requested.set()
