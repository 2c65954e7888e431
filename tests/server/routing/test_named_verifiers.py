"""A server whose verifiers come and go behind a name, over real sockets."""

import asyncio
from pathlib import Path

import pytest
from tests.certificates import Authority, write_peer
from tests.fakes.verifier import FakeVerifier, answer, running_verifier
from tests.server.routing.test_places import FakeResolver
from tests.server.support import Running, running_server, settings_for, text_request, until, whole

from blockdraft_runtime.credentials import peer_server_credentials
from blockdraft_runtime.settings.server import LimitsSettings
from blockdraft_server.routing import places as places_module

NAME = "dns:///verifiers:50052"
COUNT = 20


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(places_module, "LOOK_UP_SECONDS", 0.05)


async def test_a_verifier_that_comes_is_used_and_one_that_goes_ends_its_streams() -> None:
    # The answer must not end before the verifier was seen to leave.
    old, new = FakeVerifier(hold_after=1), FakeVerifier()
    async with running_verifier(old) as first, running_verifier(new) as second:
        resolver = FakeResolver(first)
        async with running_server(settings_for(NAME), look_up=resolver) as server:
            messages = aiter(server.stub.StreamGenerate(text_request(max_output_tokens=COUNT)))
            token_ids = list((await anext(messages)).token_ids)
            resolver.addresses = frozenset([first, second])
            await until(lambda: server.metric("verifiers", state="healthy") == 2)
            resolver.addresses = frozenset([second])
            await until(lambda: server.metric("verifiers", state="leaving") == 1)
            # Nothing new begins there, and what began there ends there.
            await server.stub.Generate(whole(text_request(max_output_tokens=1)))
            old.go_on.set()
            token_ids += [token async for message in messages for token in message.token_ids]
            await until(lambda: server.metric("verifiers", state="leaving") == 0)
            assert server.metric("verifiers", state="healthy") == 1
            replays = server.metric("replays_total")
    assert token_ids == answer([1, 2], COUNT)
    assert (len(old.requests), len(new.requests), replays) == (1, 1, 0)


async def test_one_that_comes_back_before_it_has_gone_stays() -> None:
    fake = FakeVerifier(hold_after=1)
    async with running_verifier(fake) as address, running_verifier(FakeVerifier()) as other:
        resolver = FakeResolver(address)
        async with running_server(settings_for(NAME), look_up=resolver) as server:
            call = server.stub.Generate(whole(text_request(max_output_tokens=COUNT)))
            await until(lambda: bool(fake.requests))
            resolver.addresses = frozenset([other])
            await until(lambda: server.metric("verifiers", state="leaving") == 1)
            resolver.addresses = frozenset([address, other])
            await until(lambda: server.metric("verifiers", state="healthy") == 2)
            fake.go_on.set()
            assert list((await call).token_ids) == answer([1, 2], COUNT)
            assert fake.streams == 1


async def test_the_streams_of_one_that_died_go_on_at_one_that_came() -> None:
    crashing, new = FakeVerifier(hold_after=2), FakeVerifier()
    crash = running_verifier(crashing)
    first = await crash.__aenter__()
    resolver = FakeResolver(first)
    async with (
        running_verifier(new) as second,
        running_server(settings_for(NAME), look_up=resolver) as server,
    ):
        call = server.stub.Generate(whole(text_request(max_output_tokens=COUNT)))
        await until(lambda: crashing.sent == 2)
        resolver.addresses = frozenset([second])
        await crash.__aexit__(None, None, None)
        assert list((await call).token_ids) == answer([1, 2], COUNT)
    assert len(new.requests) == 1


async def test_a_failing_look_up_changes_nothing_but_a_metric() -> None:
    async with running_verifier(FakeVerifier()) as address:
        resolver = FakeResolver(address)
        async with running_server(settings_for(NAME), look_up=resolver) as server:
            assert server.metric("lookup_failures_total") == 0
            resolver.addresses = frozenset()
            await until(lambda: server.metric("lookup_failures_total") > 1)
            await server.stub.Generate(whole(text_request(max_output_tokens=1)))
            assert server.metric("verifiers", state="healthy") == 1


def _addresses(server: Running) -> set[str]:
    states = server.app.inspect()["verifiers"]
    assert isinstance(states, list)
    return {state["address"] for state in states}


async def test_another_target_takes_the_place_of_one_that_does_not_come_back() -> None:
    other = FakeVerifier()
    other.description.target_fingerprint = "f" * 16
    limits = LimitsSettings(recovery_seconds=1.0)
    async with running_verifier(FakeVerifier()) as first, running_verifier(other) as second:
        resolver = FakeResolver(first)
        async with running_server(settings_for(NAME, limits=limits), look_up=resolver) as server:
            resolver.addresses = frozenset([second])
            await until(lambda: _addresses(server) == {second})
            await server.until_healthy(True)
            await server.stub.Generate(whole(text_request(max_output_tokens=1)))
    assert len(other.requests) == 1


async def test_certificates_are_for_the_name_and_not_for_the_address(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    authority = Authority("peers")
    files = {
        name: write_peer(tmp_path / name, authority, name=name) for name in ("verifiers", "others")
    }
    resolver = FakeResolver(f"127.0.0.1:{unused_tcp_port}", f"127.0.0.2:{unused_tcp_port}")
    async with (
        running_verifier(
            FakeVerifier(),
            f"127.0.0.1:{unused_tcp_port}",
            credentials=peer_server_credentials("host:1", files["verifiers"]),
        ),
        # Signed by the same authority, for another name.
        running_verifier(
            FakeVerifier(),
            f"127.0.0.2:{unused_tcp_port}",
            credentials=peer_server_credentials("host:1", files["others"]),
        ),
        running_server(settings_for(NAME, peer_tls=files["verifiers"]), look_up=resolver) as server,
    ):
        found = await server.stub.Generate(whole(text_request(max_output_tokens=5)))
        assert list(found.token_ids) == answer([1, 2], 5)
        await asyncio.sleep(0.2)
        states = server.app.inspect()["verifiers"]
        assert isinstance(states, list)
        assert [(one["address"].split(":")[0], one["healthy"]) for one in states] == [
            ("127.0.0.1", True),
            ("127.0.0.2", False),
        ]


async def test_one_that_comes_amid_an_exchange_of_certificates_is_used_after_it(
    tmp_path: Path, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority("peers")
    tls = write_peer(tmp_path / "peers", authority, name="verifiers")
    first, second = (f"127.0.0.{host}:{unused_tcp_port}" for host in (1, 2))
    credentials = [peer_server_credentials("host:1", tls) for _ in range(2)]
    resolver = FakeResolver(first)
    async with (
        running_verifier(FakeVerifier(), first, credentials=credentials[0]),
        running_verifier(FakeVerifier(), second, credentials=credentials[1]),
        running_server(settings_for(NAME, peer_tls=tls), look_up=resolver) as server,
    ):
        tls.key.write_bytes(b"half of a key")
        resolver.addresses = frozenset([first, second])
        await until(lambda: "cannot look up" in caplog.text)
        assert server.metric("verifiers", state="healthy") == 1
        write_peer(tmp_path / "peers", authority, name="verifiers")
        await until(lambda: server.metric("verifiers", state="healthy") == 2)
