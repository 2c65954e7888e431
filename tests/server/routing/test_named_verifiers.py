"""A server whose verifiers come and go behind a name, over real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.certificates import Authority, write_peer
from tests.fakes.verifier import FakeVerifier, completion, running_verifier
from tests.server.routing.test_places import FakeResolver
from tests.server.support import Running, running_server, settings_for, tokens_of, until

from blockdraft_runtime.credentials import peer_server_credentials
from blockdraft_runtime.settings.process import PeerTlsSettings
from blockdraft_runtime.settings.server import LimitsSettings
from blockdraft_server.routing import places as places_module

NAME = "dns:///verifiers:50052"
COUNT = 20


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(places_module, "LOOK_UP_SECONDS", 0.05)


@contextlib.asynccontextmanager
async def named(
    *fakes: FakeVerifier, **settings: object
) -> AsyncIterator[tuple[Running, FakeResolver]]:
    """Run verifiers, and a server that looks up a name, which stands for the first of them."""
    async with contextlib.AsyncExitStack() as stack:
        for fake in fakes:
            await stack.enter_async_context(running_verifier(fake))
        resolver = FakeResolver(fakes[0].address)
        server = running_server(settings_for(NAME, **settings), resolve=resolver)
        yield await stack.enter_async_context(server), resolver


async def test_a_verifier_that_comes_is_used_and_one_that_goes_ends_its_streams() -> None:
    # The answer must not end before the verifier was seen to leave.
    old, new = FakeVerifier(hold_after=1), FakeVerifier()
    async with named(old, new) as (server, resolver):
        messages = aiter(server.stream(max_output_tokens=COUNT))
        first = await anext(messages)
        resolver.addresses = frozenset([old.address, new.address])
        await until(lambda: server.metric("verifiers", state="healthy") == 2)
        resolver.addresses = frozenset([new.address])
        await until(lambda: server.metric("verifiers", state="leaving") == 1)
        # Nothing new begins there, and what began there ends there.
        await server.generate(max_output_tokens=1)
        old.go_on.set()
        rest = [message async for message in messages]
        await until(lambda: server.metric("verifiers", state="leaving") == 0)
        assert server.metric("verifiers", state="healthy") == 1
        replays = server.metric("replays_total")
    assert tokens_of([first, *rest]) == completion([1, 2], COUNT)
    assert (len(old.requests), len(new.requests), replays) == (1, 1, 0)


async def test_one_that_comes_back_before_it_has_gone_stays() -> None:
    fake, other = FakeVerifier(hold_after=1), FakeVerifier()
    async with named(fake, other) as (server, resolver):
        call = server.generate(max_output_tokens=COUNT)
        await until(lambda: bool(fake.requests))
        resolver.addresses = frozenset([other.address])
        await until(lambda: server.metric("verifiers", state="leaving") == 1)
        resolver.addresses = frozenset([fake.address, other.address])
        await until(lambda: server.metric("verifiers", state="healthy") == 2)
        fake.go_on.set()
        assert list((await call).token_ids) == completion([1, 2], COUNT)
        assert fake.streams == 1


async def test_the_streams_of_one_that_died_go_on_at_one_that_came() -> None:
    crashing, new = FakeVerifier(hold_after=2), FakeVerifier()
    async with named(crashing, new) as (server, resolver):
        call = server.generate(max_output_tokens=COUNT)
        await until(lambda: crashing.sent == 2)
        resolver.addresses = frozenset([new.address])
        await crashing.crash()
        assert list((await call).token_ids) == completion([1, 2], COUNT)
    assert len(new.requests) == 1


async def test_a_failing_look_up_changes_nothing_but_a_metric() -> None:
    async with named(FakeVerifier()) as (server, resolver):
        assert server.metric("name_resolution_failures_total") == 0
        resolver.addresses = frozenset()
        await until(lambda: server.metric("name_resolution_failures_total") > 1)
        await server.generate(max_output_tokens=1)
        assert server.metric("verifiers", state="healthy") == 1


def states(server: Running) -> list[tuple[str, bool]]:
    """Return where verifiers are, and whether they are healthy."""
    found = server.app.inspect()["verifiers"]
    assert isinstance(found, list)
    return [(state["address"], state["healthy"]) for state in found]


async def test_another_target_takes_the_place_of_one_that_does_not_come_back() -> None:
    first, other = FakeVerifier(), FakeVerifier()
    other.description.target_fingerprint = "f" * 16
    limits = LimitsSettings(recovery_seconds=1.0)
    async with named(first, other, limits=limits) as (server, resolver):
        resolver.addresses = frozenset([other.address])
        await until(lambda: [address for address, _ in states(server)] == [other.address])
        await server.until_healthy(True)
        await server.generate(max_output_tokens=1)
    assert len(other.requests) == 1


@contextlib.asynccontextmanager
async def certified(port: int, *files: PeerTlsSettings) -> AsyncIterator[tuple[str, str]]:
    """Run two verifiers with these certificates, each at an address of its own."""
    first, second = (f"127.0.0.{host}:{port}" for host in (1, 2))
    shown = [peer_server_credentials("host:1", each) for each in files]
    async with (
        running_verifier(FakeVerifier(), first, credentials=shown[0]),
        running_verifier(FakeVerifier(), second, credentials=shown[1]),
    ):
        yield first, second


async def test_certificates_are_for_the_name_and_not_for_the_address(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    authority = Authority("peers")
    # Signed by the same authority, for another name.
    right, others = (
        write_peer(tmp_path / name, authority, name=name) for name in ("verifiers", "others")
    )
    async with certified(unused_tcp_port, right, others) as (first, second):
        resolver = FakeResolver(first, second)
        settings = settings_for(NAME, peer_tls=right)
        async with running_server(settings, resolve=resolver) as server:
            found = await server.generate(max_output_tokens=5)
            assert list(found.token_ids) == completion([1, 2], 5)
            await asyncio.sleep(0.2)
            assert states(server) == [(first, True), (second, False)]


async def test_one_that_comes_amid_an_exchange_of_certificates_is_used_after_it(
    tmp_path: Path, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority("peers")
    tls = write_peer(tmp_path / "peers", authority, name="verifiers")
    async with certified(unused_tcp_port, tls, tls) as (first, second):
        resolver = FakeResolver(first)
        settings = settings_for(NAME, peer_tls=tls)
        async with running_server(settings, resolve=resolver) as server:
            tls.key.write_bytes(b"half of a key")
            resolver.addresses = frozenset([first, second])
            await until(lambda: "cannot resolve" in caplog.text)
            assert server.metric("verifiers", state="healthy") == 1
            write_peer(tmp_path / "peers", authority, name="verifiers")
            await until(lambda: server.metric("verifiers", state="healthy") == 2)
