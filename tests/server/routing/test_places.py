"""Where verifiers are, as a resolver that the test plays says it."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from tests.server.support import until

from blockdraft_runtime.settings.server import PeerName, ServerSettings
from blockdraft_server.routing import places as places_module
from blockdraft_server.routing.places import Place, Places, resolve

NAME = "dns:///verifiers:50052"


class FakeResolver:
    """Answers with `addresses`, or fails while there are none.

    Attributes:
        looks: How often it was asked.
    """

    def __init__(self, *addresses: str) -> None:
        self.addresses = frozenset(addresses)
        self.looks = 0

    async def __call__(self, name: PeerName) -> frozenset[str]:
        self.looks += 1
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.addresses


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "_LEAST_SECONDS", 0.01)


@contextlib.asynccontextmanager
async def keeping(
    places: Places, on_resolved: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    task = asyncio.ensure_future(places.keep_current(on_resolved))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_name_stands_for_all_its_addresses() -> None:
    places = Places(["unix:/v", NAME], resolve=FakeResolver("10.0.0.1:50052", "10.0.0.2:50052"))
    assert places.known_places == {Place("unix:/v")}
    async with keeping(places):
        await until(lambda: len(places.known_places) == 3)
    # An address has no name of its own in a certificate.
    assert places.known_places == {
        Place("unix:/v"),
        Place("10.0.0.1:50052", "verifiers"),
        Place("10.0.0.2:50052", "verifiers"),
    }


async def test_who_misses_a_verifier_need_not_wait_for_the_next_look() -> None:
    resolver = FakeResolver("a:1")
    places = Places([NAME], resolve=resolver)
    async with keeping(places):
        await until(lambda: resolver.looks == 1)
        resolver.addresses = frozenset(["b:1"])
        places.resolve_now()
        await until(lambda: {place.address for place in places.known_places} == {"b:1"})
        assert resolver.looks == 2


async def test_what_was_known_outlives_a_resolver_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(places_module, "LOOK_UP_SECONDS", 0.02)
    resolver, failures = FakeResolver("a:1"), 0

    def on_failure() -> None:
        nonlocal failures
        failures += 1

    places = Places([NAME], on_failure, resolver)
    with caplog.at_level(logging.INFO, "blockdraft_server"):
        async with keeping(places):
            await until(lambda: {place.address for place in places.known_places} == {"a:1"})
            resolver.addresses = frozenset()
            await until(lambda: failures >= 3)
            assert {place.address for place in places.known_places} == {"a:1"}
            resolver.addresses = frozenset(["b:1", "c:1"])
            await until(lambda: {place.address for place in places.known_places} == {"b:1", "c:1"})
            await until(lambda: "again" in caplog.text)
    said = [record.getMessage() for record in caplog.records if "cannot" in record.getMessage()]
    assert said == [
        f"cannot resolve {NAME}: [Errno -2] Name or service not known; its addresses stay"
    ]


async def test_a_connection_that_cannot_be_made_does_not_end_the_looking(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = 0

    def on_resolved() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise FileNotFoundError(2, "No such file or directory", "ca.pem")

    places = Places([NAME], resolve=FakeResolver("a:1"))
    async with keeping(places, on_resolved):
        await until(lambda: looks == 1)
        places.resolve_now()
        await until(lambda: looks == 2)
    assert "ca.pem" in caplog.text


async def test_the_system_knows_this_host() -> None:
    found = await resolve(PeerName("localhost", 50052))
    assert found in (frozenset(["127.0.0.1:50052"]), frozenset(["[::1]:50052"]))
    assert await resolve(PeerName("127.0.0.7", 1)) == {"127.0.0.7:1"}
    assert await resolve(PeerName("::1", 1)) == {"[::1]:1"}


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 64, "two..dots"])
async def test_a_host_that_nobody_knows_is_an_error(host: str) -> None:
    with pytest.raises(OSError, match=r"not known|failure in name|no host is called"):
        await resolve(PeerName(host, 1))


def test_a_full_name_is_certified_without_its_dot() -> None:
    name = PeerName.parse("dns:///verifiers.blockdraft.svc.cluster.local.:50052")
    assert name is not None
    assert name.host.endswith("local.")
    assert name.certified == "verifiers.blockdraft.svc.cluster.local"
    assert str(PeerName.parse(NAME)) == NAME


@pytest.mark.parametrize(
    "address",
    [
        *("dns:verifiers:1", "dns://8.8.8.8/verifiers:1", "dns:///verifiers", "dns:///:1"),
        *("dns:///v:0", "dns:///v:65536", "dns:///v:x", "dns:///[::1]:1", "dns:///a/b:1"),
    ],
)
def test_a_name_written_wrongly_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="a name of several is written dns:///HOST:PORT"):
        ServerSettings(verifiers=(address,))


def test_addresses_of_one_are_no_names() -> None:
    for address in ("host:1", "127.0.0.1:1", "unix:/v", "ipv4:127.0.0.1:1"):
        assert PeerName.parse(address) is None
