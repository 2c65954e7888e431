"""How a client finds its server, and what it sends there."""

import json
import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.client.api import Api
from tests.fakes.inference import RunningFake

from blockdraft_client import (
    AsyncClient,
    Client,
    ClientClosedError,
    KeepAliveConfig,
    RetryConfig,
    TLSConfig,
    UnavailableError,
)
from blockdraft_client.base import ClientBase, is_local
from blockdraft_runtime.channel import SERVER_OPTIONS
from blockdraft_runtime.settings.server import ServerSettings

Base = ClientBase[None]


@pytest.mark.parametrize(
    ("targets", "local"),
    [
        ("localhost:50051 127.0.0.2:1 [::1]:50051 ::1 unix:/tmp/socket unix-abstract:socket", True),
        ("dns:///localhost:50051 ipv4:127.0.0.1:50051 ipv6:[::1]:50051", True),
        ("ipv4:127.0.0.1:1,10.0.0.1:1 10.0.0.1:50051 example.com xds:///service", False),
        ("dns:///example.com:443 localhost.example.com:1", False),
    ],
)
def test_what_stays_on_this_machine(targets: str, local: bool) -> None:
    for target in targets.split():
        assert is_local(target) is local, target


@pytest.mark.parametrize(
    ("target", "called"),
    [
        ("localhost", "localhost:50051"),
        ("example.com", "example.com:50051"),
        ("10.0.0.1", "10.0.0.1:50051"),
        ("[::1]", "[::1]:50051"),
        ("::1", "[::1]:50051"),
        ("dns:host", "dns:host:50051"),
        ("dns:///host", "dns:///host:50051"),
        ("dns://8.8.8.8/host", "dns://8.8.8.8/host:50051"),
        ("ipv4:10.0.0.1,10.0.0.2:8", "ipv4:10.0.0.1:50051,10.0.0.2:8"),
        ("ipv6:[::1]", "ipv6:[::1]:50051"),
    ],
)
def test_an_address_without_a_port_has_that_of_the_server(target: str, called: str) -> None:
    assert Base(target).address == called
    assert ServerSettings().process.address.endswith(":50051")


@pytest.mark.parametrize(
    "target",
    [
        *("host:443", "[::1]:1", "dns:host:1", "dns:///host:1", "ipv6:[::1]:1", "xds:///service"),
        *("unix:/path", "unix:path,a", "unix:///path", "unix-abstract:name"),
    ],
)
def test_an_address_that_says_it_all_is_kept(target: str) -> None:
    assert Base(target).address == target


@pytest.mark.parametrize("target", ["http://localhost:8000/v1", "https://example.com"])
def test_a_url_is_no_address(target: str) -> None:
    with pytest.raises(ValueError, match="an address is host:port, of the gRPC API"):
        Base(target)


def test_arguments_win_over_variables_and_those_over_defaults(
    fake: RunningFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Base().address == "localhost:50051"
    monkeypatch.setenv("BLOCKDRAFT_ADDRESS", fake.target)
    monkeypatch.setenv("BLOCKDRAFT_API_KEY", "from-outside")
    for key in (None, "given", ""):
        with Client(api_key=key) as client:
            client.model()
    keys = [each.get("authorization") for each in fake.service.metadata]
    assert keys == ["Bearer from-outside", "Bearer given", None]
    assert Base("localhost:2").address == "localhost:2"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what gets the kind and the options of each channel that is opened."""
    channels: list[dict[str, Any]] = []

    def noting(kind: str, open_channel: Callable[..., Any]) -> Callable[..., Any]:
        def opening(*arguments: Any) -> Any:
            channels.append({"kind": kind, **dict(arguments[-1])})
            return open_channel(*arguments)

        return opening

    for kind in ("insecure_channel", "secure_channel"):
        monkeypatch.setattr(grpc, kind, noting(kind, getattr(grpc, kind)))
    return channels


def test_a_key_leaves_this_machine_only_encrypted(opened: list[dict[str, Any]]) -> None:
    for address, key in (("example.com:443", "k"), ("localhost:1", "k"), ("example.com:443", "")):
        Client(address, api_key=key).close()
    kinds = [channel["kind"] for channel in opened]
    assert kinds == ["secure_channel", "insecure_channel", "insecure_channel"]
    for make in (Base, AsyncClient):
        with pytest.raises(ValueError, match="plaintext"):
            make("example.com:443", api_key="k", tls=False)
    assert "secret" not in repr(Base("localhost:1", api_key="secret"))


async def test_a_key_from_a_file_may_end_its_line(kind: str, fake: RunningFake) -> None:
    for key in ("k\n", lambda: " k\r\n"):
        async with Api(kind, fake.target, api_key=key) as api:
            await api.call("generate", "hi")
    assert [each["authorization"] for each in fake.service.metadata] == ["Bearer k"] * 2
    with pytest.raises(ValueError, match="must be printable ASCII") as found:
        Base("localhost:1", api_key="secret\nsecret")
    assert "secret" not in str(found.value)


async def test_the_deadline_is_that_of_the_call_or_else_of_the_client(
    kind: str, fake: RunningFake
) -> None:
    hour, year = 3600.0, 365 * 24 * 3600.0
    async with Api(kind, fake.target, timeout=hour) as api:
        for timeout in (None, 24 * hour, 1e300, math.inf):
            await api.call("generate", "hi", timeout=timeout)
    of_client, of_call, *endless = fake.service.seconds_left
    # On the way a deadline is rounded, and loses some time.
    assert hour / 2 < of_client < 2 * hour
    assert 12 * hour < of_call < 48 * hour
    assert min(endless) > year


async def test_key_and_metadata_reach_the_server(kind: str, fake: RunningFake) -> None:
    keys = iter(("first", "second"))
    async with Api(kind, fake.target, api_key=lambda: next(keys), metadata=[("team", "a")]) as api:
        await api.call("generate", "hi", metadata=[("trace", "1")])
        await api.read("hi")
        first, second = fake.service.metadata
        assert (first["authorization"], first["team"], first["trace"]) == ("Bearer first", "a", "1")
        assert (second["authorization"], "trace" in second) == ("Bearer second", False)
        assert first["user-agent"].startswith("blockdraft-python/")


def test_options_given_by_the_caller_win(opened: list[dict[str, Any]]) -> None:
    given: dict[str, int | str] = {"grpc.keepalive_time_ms": 60_000, "grpc.custom": "x"}
    Client("localhost:1", channel_options=[*given.items()]).close()
    assert given.items() <= opened[0].items()


def test_only_unavailable_is_retried_and_no_deadline_is_set_by_the_channel(
    opened: list[dict[str, Any]],
) -> None:
    for options in ({}, {"retry": None}, {"retry": RetryConfig(max_attempts=1)}):
        Client("localhost:1", **options).close()
    usual, *without = opened
    (method,) = json.loads(usual["grpc.service_config"])["methodConfig"]
    assert method["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
    assert method["retryPolicy"]["maxAttempts"] <= 5
    assert "timeout" not in method
    assert method["retryPolicy"]["initialBackoff"] == "0.100000000s"
    assert not any("grpc.service_config" in each for each in without)


def test_the_server_permits_the_clients_pings(opened: list[dict[str, Any]]) -> None:
    for pings in (KeepAliveConfig(interval_seconds=10), None):
        Client("localhost:1", keepalive=pings).close()
    permitted = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert opened[0]["grpc.keepalive_time_ms"] >= permitted
    assert "grpc.keepalive_time_ms" not in opened[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryConfig(max_attempts=6),
        lambda: RetryConfig(max_attempts=0),
        lambda: RetryConfig(max_backoff_seconds=0),
        lambda: KeepAliveConfig(interval_seconds=5),
        lambda: KeepAliveConfig(timeout_seconds=0),
        lambda: TLSConfig(client_certificate=b"only"),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


async def test_a_channel_of_the_caller_stays_open(kind: str, fake: RunningFake) -> None:
    module: Any = grpc if kind == "sync" else grpc.aio
    channel = module.insecure_channel(fake.target)
    for _ in range(2):
        async with Api(kind, fake.target, channel=channel) as api:
            assert (await api.call("model")).name == "fake"
    if kind == "sync":
        channel.close()
    else:
        await channel.close()


@pytest.mark.parametrize("used", [False, True])
async def test_a_closed_client_refuses_calls(kind: str, fake: RunningFake, used: bool) -> None:
    async with Api(kind, fake.target) as api:
        if used:
            await api.call("model")
    for method, *arguments in (
        *(("generate", "hi"), ("tokenize", "hi"), ("model",), ("health",), ("wait_ready", 1.0)),
    ):
        with pytest.raises(ClientClosedError, match="the client is closed"):
            await api.call(method, *arguments)
    with pytest.raises(ClientClosedError):
        await api.read("hi")


async def test_without_retries_the_first_refusal_stands(kind: str, fake: RunningFake) -> None:
    fake.service.initial_failures = 1
    async with Api(kind, fake.target, retry=None) as api:
        with pytest.raises(UnavailableError):
            await api.call("model")
        assert (await api.call("model")).name == "fake"
